package enforce

import (
	"reflect"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// slice gives the scheduler of a time-sliced GPU its leases and their utilization.
func (en *Enforcer) slice(id gpu.UUID, leases []lease.Lease, used map[string]*leaseUse) {
	want := en.State.Desired()
	if want.Mode(id) != api.ModeTimeslice {
		en.Shares.set(en, id, 0, nil)
		return
	}
	round := time.Duration(0)
	if e := want.GPUs[id]; e.Timeslice != nil && e.Timeslice.Round != nil {
		round = time.Duration(*e.Timeslice.Round)
	}
	var list []quota.Member
	for i := range leases {
		l := &leases[i]
		s := l.Terms.Spec.Timeslice
		if s == nil || l.State != lease.Running {
			continue
		}
		m := quota.Member{
			Lease: l.ID, Grant: l.Terms.Tenant + "/" + l.Terms.Spec.Name, Share: float64(s.Share),
			Active: used[l.ID] != nil && len(used[l.ID].processes) > 0, NeverFreeze: !l.Isolation.Freeze, Held: en.withheld(l.ID),
			Priority: priorityOf(l.Terms.Priority), LowLatency: l.Terms.Spec.LowLatency(),
		}
		if s.Cap != nil {
			part := float64(*s.Cap) / 100
			m.Cap = &part
		}
		list = append(list, m)
	}
	en.Shares.set(en, id, round, list)
}

// sameMember reports whether a lease takes part as before. Cap points to a number.
func sameMember(a, b quota.Member) bool {
	if (a.Cap == nil) != (b.Cap == nil) || a.Cap != nil && *a.Cap != *b.Cap {
		return false
	}
	a.Cap, b.Cap = nil, nil
	return reflect.DeepEqual(a, b)
}
