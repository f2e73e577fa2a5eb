package converge

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/lease"
)

// unmetReserved is the reserved grants that were reported because their places cannot be kept free.
type unmetReserved struct {
	mu    locks.Mutex[locks.Leaf] // guards unmet
	unmet map[lease.Key]bool
}

// swap stores the grants that are unmet now, and returns the former ones.
func (r *unmetReserved) swap(now map[lease.Key]bool) (before map[lease.Key]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.unmet = r.unmet, now
	return before
}

// updateReserved reports reserved grants (reserved: true) whose places cannot be kept free, and when they are again. No lease
// is stopped for them. An open change closes GPUs for a short time: that is not reported.
func (cv *Converger) updateReserved() {
	if cv.State.Changing() != nil {
		return
	}
	conditions, now := map[string]api.Condition{}, map[lease.Key]bool{}
	unmet := cv.Table.Unmet()
	for _, u := range unmet {
		now[u.Grant] = true
		conditions[u.Grant.Tenant+"/"+u.Grant.Grant] = api.Condition{
			Tenant:  u.Grant.Tenant,
			Message: u.Reason,
			Hint:    "no lease is stopped for it: its places are kept free when leases end; 'gpushare lease list' lists the leases",
		}
	}
	cv.Conditions.Replace("reserved", conditions)
	before := cv.unmetReserved.swap(now)
	for _, u := range unmet {
		if !before[u.Grant] {
			cv.Events.Publish(api.Event{Kind: "reserved.unmet", Tenant: u.Grant.Tenant, Message: u.Reason})
		}
	}
	for key := range before {
		if !now[key] {
			cv.Events.Publish(api.Event{
				Kind:    "reserved.kept",
				Tenant:  key.Tenant,
				Message: key.Tenant + "/" + key.Grant + ": its reserved places are kept free again, or it is no longer reserved",
			})
		}
	}
}
