package engines

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// furtherCgroup checks a cgroup that a request names for a kept lease that runs. One that the lease has is not checked again: its
// processes are those of the lease.
func (en *Engines) furtherCgroup(l *lease.Lease, name string, caller int) (string, error) {
	cg, err := en.Cgroups.CleanCgroup(name)
	if err != nil || slices.Contains(l.Cgroups(), cg) {
		return cg, err
	}
	cg, _, err = en.Cgroups.EngineCgroup(name, l.UID, caller)
	return cg, err
}

// addCgroup gives a kept lease one more cgroup. The lease of a claim has those of all its pods.
func (en *Engines) addCgroup(ctx context.Context, l *lease.Lease, cg string) (lease.Lease, error) {
	cgroups, err := en.withCgroup(l, cg)
	if err != nil {
		return *l, err
	}
	if l.AwaitsCgroup() {
		return *l, nil // It is named where the lease is bound.
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	if err := en.Cgroups.SetCgroups(ctx, l, cgroups); err != nil {
		return *l, fmt.Errorf("cannot give lease %s cgroup %s: %w", l.ID, cg, err)
	}
	en.Events.Publish(l.Event("lease.joined", "cgroup "+cg+" belongs to "+l.Engine.Key+" too"))
	if now, ok := en.Table.Get(l.ID); ok {
		return now, nil
	}
	return *l, nil
}

// withCgroup are the cgroups of a lease and one more. Those that are not there go when there are too many: they are of pods that ended.
func (en *Engines) withCgroup(l *lease.Lease, cg string) ([]string, error) {
	cgroups := l.Cgroups()
	if len(cgroups) >= api.MostCgroups && !l.AwaitsCgroup() {
		h, err := en.Hierarchy()
		if err != nil {
			return nil, err
		}
		cgroups = slices.DeleteFunc(cgroups, func(name string) bool { return !h.Exists(name) })
	}
	if len(cgroups) >= api.MostCgroups {
		return nil, &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot give lease %s cgroup %s: it has %d already, the most that a lease may", l.ID, cg, len(cgroups)),
			Hint:    "'gpushare lease show --key " + l.Engine.Key + "' shows them",
		}
	}
	return append(cgroups, cg), nil
}
