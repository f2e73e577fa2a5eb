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
	if l.AwaitsCgroup() {
		_, err := en.withCgroup(l, cg)
		return *l, err // It is named where the lease is bound.
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	var full error
	now, err := en.Cgroups.SetCgroups(ctx, l.ID, func(now *lease.Lease) (all []string, _ error) {
		all, full = en.withCgroup(now, cg)
		return all, full
	})
	switch {
	case full != nil:
		return *l, full
	case err != nil:
		return *l, fmt.Errorf("cannot give lease %s cgroup %s: %w", l.ID, cg, err)
	}
	en.Events.Publish(now.Event("lease.joined", "cgroup "+cg+" belongs to "+l.Engine.Key+" too"))
	return now, nil
}

// withCgroup are the cgroups of a lease and one more. When there are too many, those of pods that ended go.
func (en *Engines) withCgroup(l *lease.Lease, cg string) ([]string, error) {
	cgroups := l.Cgroups()
	if slices.Contains(cgroups, cg) {
		return cgroups, nil
	}
	if len(cgroups) >= api.MostCgroups && !l.AwaitsCgroup() {
		h, err := en.Hierarchy()
		if err != nil {
			return nil, err
		}
		cgroups = l.CgroupsLeft(h.Exists)
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
