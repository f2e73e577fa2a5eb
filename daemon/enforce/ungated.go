package enforce

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/quota"
)

// conditionUngated is the condition of a lease that runs in the slices of others, because it cannot be frozen.
const conditionUngated = "lease-not-frozen"

// ungatedLease is a lease whose last freeze failed.
type ungatedLease struct {
	err      error
	reported bool // the scheduler has given up to freeze it for a while
}

// noteFreeze records how the last freeze of a lease did. The lock is held.
func (sl *Slicer) noteFreeze(id string, err error) {
	u := sl.ungated[id]
	switch {
	case err != nil:
		if sl.ungated == nil {
			sl.ungated = map[string]ungatedLease{}
		}
		u.err = err
		sl.ungated[id] = u
	case !u.reported:
		delete(sl.ungated, id)
	}
}

// updateUngated compares the leases whose freezes failed with what the scheduler says of them, and returns which it has given up
// to freeze for a while, and which it has not any more. The lock is held.
func (sl *Slicer) updateUngated(uses []quota.Usage) (begun map[string]error, ended []string) {
	unfreezable := map[string]bool{}
	for i := range uses {
		unfreezable[uses[i].Lease] = uses[i].Unfreezable
	}
	for lease, u := range sl.ungated {
		switch {
		case unfreezable[lease] && !u.reported:
			u.reported = true
			sl.ungated[lease] = u
			if begun == nil {
				begun = map[string]error{}
			}
			begun[lease] = u.err
		case !unfreezable[lease] && u.reported:
			ended = append(ended, lease)
			delete(sl.ungated, lease)
		}
	}
	return begun, ended
}

// reportUngated reports the leases that cannot be frozen. The others share the time among them as if it was not there, and what it
// uses is measured. After a minute the scheduler tries again.
func (d *Enforcer) reportUngated(id gpu.UUID, begun map[string]error, ended []string) {
	for _, lease := range ended {
		d.Conditions.Clear(conditionUngated, lease)
	}
	for lease, err := range begun {
		l, ok := d.Table.Get(lease)
		if !ok {
			continue
		}
		c := api.Condition{
			GPU:     string(id),
			Tenant:  l.Terms.Tenant,
			Message: "lease " + l.ID + " runs in the slices of others: it cannot be frozen: " + err.Error(),
			Hint:    "'gpushare lease stop " + l.ID + "' ends it",
		}
		d.Conditions.Put(conditionUngated, l.ID, c)
		d.Events.Publish(l.Event("lease.not-frozen", c.Message))
	}
}

// clearUngated removes the conditions when the loop of the GPU ends.
func (sl *Slicer) clearUngated(d *Enforcer) {
	sl.mu.Lock()
	_, ended := sl.updateUngated(nil)
	sl.mu.Unlock()
	d.reportUngated("", nil, ended)
}
