package state

import "github.com/gpushare/gpushare/lease"

// NeverFrozen is why a lease in place is never frozen for the time shares of others; empty if it is. It is frozen only if it is the job
// of an engine, in a cgroup that the engine made, and the spec permits that.
func (d *Desired) NeverFrozen(l *lease.Lease) string {
	switch {
	case l.Engine == nil || l.Cgroup == "":
		return "it is never frozen, so it is not limited to its share"
	case !d.Enforcing() || !d.Spec.Node.Engine.Freezes(l.Engine.Name()):
		return "jobs of " + l.Engine.Name() + " are not frozen, so it is not limited to its share (node.engine.freeze)"
	}
	return ""
}
