package escape

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// mostOthersNamed is how many processes a condition names.
const mostOthersNamed = 3

// reportOthers reports the processes in the cgroups of keyed leases that count for the lease, and are never stopped with it.
func (x *unattributedTracker) reportOthers(e *Escapes, node *observe.Node) {
	conditions := map[string]api.Condition{}
	for _, l := range e.Table.LiveOnly(func(l *lease.Lease) bool { return !stop.Whole(l) }) {
		var others []string
		for i := range node.GPUs {
			g := &node.GPUs[i]
			if !slices.Contains(l.Place.GPUs, g.Identity.UUID) {
				continue
			}
			for _, p := range x.processes(g) {
				if name, kept := e.keptOf(&l, p.PID); kept && !slices.Contains(others, name) {
					others = append(others, name)
				}
			}
		}
		if n := len(others); n > 0 {
			slices.Sort(others)
			named := strings.Join(others[:min(n, mostOthersNamed)], ", ")
			if n > mostOthersNamed {
				named += fmt.Sprintf(" and %d more", n-mostOthersNamed)
			}
			conditions[l.ID] = api.Condition{
				Message: fmt.Sprintf(
					"processes of others than %s are in the cgroup of lease %s (%s), count for it, and are never stopped with it: %s",
					l.User, l.ID, l.Engine.Key, named,
				),
				Hint: "end them; 'gpushare lease show " + l.ID + "' shows the cgroup",
			}
		}
	}
	e.Conditions.Replace("lease-others", conditions)
}

// keptOf names a process of a lease that is never stopped with it.
func (e *Escapes) keptOf(l *lease.Lease, pid int) (name string, kept bool) {
	if id, ok := e.Attribution.LeaseOf(pid); !ok || id != l.ID {
		return "", false
	}
	if d := stop.DecideNamed(l, pid); d != stop.IsRoot && d != stop.IsOther {
		return "", false
	}
	name = fmt.Sprintf("pid %d (%s)", pid, procfs.Name(pid))
	if uid, err := procfs.UID(pid); err == nil && e.UserName != nil {
		name += " of " + e.UserName(int(uid))
	}
	return name, true
}
