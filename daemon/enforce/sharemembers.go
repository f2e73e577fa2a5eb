package enforce

import (
	"reflect"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// slice gives the scheduler of a time-sliced GPU its leases and their utilization.
func (s *sampler) slice(leases []lease.Lease, used map[string]*leaseUse) {
	en, id := s.en, s.id
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
	var unfreezable map[string]error
	for i := range leases {
		l := &leases[i]
		grant := l.Terms.Spec.Timeslice
		if grant == nil || l.State != lease.Running {
			continue
		}
		never := !l.Isolation.Freeze
		if l.InPlace() {
			err := s.en.permit(l, used[l.ID], s.control.Stage(accountOf(l), l.ID))
			if never = err != nil; never {
				if unfreezable == nil {
					unfreezable = map[string]error{}
				}
				unfreezable[l.ID] = err
			}
		}
		m := quota.Member{
			Lease: l.ID, Grant: dividing(l), Payer: l.Payer().String(), Share: l.Share(), Cap: capOf(l),
			Active: used[l.ID] != nil && len(used[l.ID].processes) > 0, NeverFreeze: never, Held: en.withheld(l.ID),
			Priority: priorityOf(l.Terms.Priority), LowLatency: l.Terms.Spec.LowLatency(),
		}
		list = append(list, m)
	}
	en.Shares.set(en, id, round, list)
	if sl := en.Shares.get(id); sl != nil {
		sl.mu.Lock()
		sl.never = unfreezable
		sl.mu.Unlock()
	}
}

// dividing is the name of the leases that divide a share among them: those of one grant. A lease with a share of its own divides it with
// none.
func dividing(l *lease.Lease) string {
	name := l.Terms.Tenant + "/" + l.Terms.Spec.Name
	if l.Own.Share > 0 {
		name += "/" + l.ID
	}
	return name
}

// capOf is the part of the GPU's time that the leases that divide a share have at most; nil: no cap. Of the cap of the grant they have as
// much as of its share.
func capOf(l *lease.Lease) *float64 {
	grant := l.Terms.Spec.Timeslice
	if grant.Cap == nil {
		return nil
	}
	part := float64(*grant.Cap) / 100
	if grant.Share > 0 {
		part *= l.Share() / float64(grant.Share)
	}
	return &part
}

// sameMember reports whether a lease takes part as before. Cap points to a number.
func sameMember(a, b quota.Member) bool {
	if (a.Cap == nil) != (b.Cap == nil) || a.Cap != nil && *a.Cap != *b.Cap {
		return false
	}
	a.Cap, b.Cap = nil, nil
	return reflect.DeepEqual(a, b)
}
