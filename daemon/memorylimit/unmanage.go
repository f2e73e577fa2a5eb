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
	err = m.eachAttached(func(id gpu.UUID, l *lease.Lease) error {
		is, err := m.Driver.MemoryLimit(ctx, id, m.Hierarchy.Dir(l.Isolation.Cgroup))
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
	return m.eachAttached(func(id gpu.UUID, l *lease.Lease) error {
		return m.limit(ctx, id, &item{cgroup: l.Isolation.Cgroup, tenant: l.Terms.Tenant, lease: l.ID})
	})
}

// eachAttached calls f for each lease in place that has a cgroup of another manager, and joins the errors.
func (m *Limits) eachAttached(f func(id gpu.UUID, l *lease.Lease) error) error {
	var errs []error
	live := m.Table.Live()
	for i := range live {
		l := &live[i]
		if m.Hierarchy == nil || !l.InPlace() || l.Origin == lease.OriginContainer || l.Isolation.Cgroup == "" ||
			!m.Hierarchy.Exists(l.Isolation.Cgroup) {
			continue
		}
		for _, id := range l.Place.GPUs {
			if a := m.abilityOf(id); limitOn(l, id) > 0 && !(a.known && a.reason != "") {
				errs = append(errs, f(id, l))
			}
		}
	}
	return errors.Join(errs...)
}
