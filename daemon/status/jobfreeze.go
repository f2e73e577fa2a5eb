package status

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// setFreeze shows whether a lease that is the job of an engine can be frozen: the spec may have changed since its cgroup was bound.
func (v *Viewer) setFreeze(l *api.Lease) {
	if l.Engine == nil || l.Kind != api.ModeTimeslice {
		return
	}
	now, ok := v.Table.Get(l.ID)
	if !ok || now.Cgroup == "" || now.State != lease.Running {
		return
	}
	why := v.State.Desired().NeverFrozen(&now)
	if why == "" && v.Freezer == nil {
		why = "nothing can be frozen here, so it is not limited to its share"
	}
	l.Isolation.SetFreeze(why)
}
