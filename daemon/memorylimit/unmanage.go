package memorylimit

import (
	"context"
	"errors"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
)

// Attached counts the limits on cgroups of other managers: those of leases in place. The limits of other leases end with
// their cgroups.
func (m *Limits) Attached(ctx context.Context) (n int, err error) {
	err = m.eachAttached(func(id gpu.UUID, it *item) error {
		is, err := m.Driver.MemoryLimit(ctx, id, m.Hierarchy.Dir(it.cgroup))
		if is.Hard != nil {
			n++
		}
		if gpu.IsAny(err, gpu.ErrNotFound, gpu.ErrNotSupported) {
			return nil
		}
		return err
	})
	return n, err
}

// RemoveAttached removes them.
func (m *Limits) RemoveAttached(ctx context.Context) error {
	return m.eachAttached(func(id gpu.UUID, it *item) error { return m.limit(ctx, id, it) })
}

// eachAttached calls f for each cgroup of another manager that a lease in place has and that is there, and joins the errors.
func (m *Limits) eachAttached(f func(id gpu.UUID, it *item) error) error {
	var errs []error
	live := m.Table.Live()
	for i := range live {
		l := &live[i]
		if m.Hierarchy == nil || !l.InPlace() || l.Origin == lease.OriginContainer {
			continue
		}
		for _, cg := range cgroupsOf(l) {
			if !m.Hierarchy.Exists(cg) {
				continue
			}
			for _, id := range l.Place.GPUs {
				if a := m.abilityOf(id); limitOn(l, id) > 0 && !(a.known && a.reason != "") {
					errs = append(errs, f(id, &item{cgroup: cg, tenant: l.Terms.Tenant, lease: l.ID}))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// cgroupsOf are all cgroups of a lease that a limit may be on.
func cgroupsOf(l *lease.Lease) (all []string) {
	if l.Isolation.Cgroup != "" {
		all = append(all, l.Isolation.Cgroup)
	}
	for _, cg := range l.Cgroups() {
		if cg != l.Isolation.Cgroup {
			all = append(all, cg)
		}
	}
	return all
}
