package leases

import (
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/lease"
)

// scopeOf is the scope of a lease.
func scopeOf(l *lease.Lease, p cgroup.Process, rules []cgroup.DeviceRule) cgroup.Scope {
	s := cgroup.Scope{
		ID: l.ID, Slice: state.SliceOf(l), Process: p,
		Description: "gpushare lease " + l.ID, Closed: true, Devices: rules, StopTimeout: stop.StopGrace, Cgroup: l.Cgroup,
	}
	if l.Kept() {
		s.Kept, s.Further = true, l.Engine.Further
	}
	return s
}

// isolationStatus returns the restrictions that are active and those that are missing.
func isolationStatus(info cgroup.Info, s cgroup.ScopeState) api.IsolationStatus {
	w := api.IsolationStatus{Cgroup: s.Path, Unit: s.Unit, Devices: info.Devices, Freeze: info.Freeze, MemoryNodes: s.MemoryNodes}
	if !info.Devices {
		w.DevicesReason = devicepolicy.WhyNoDeviceRules(info)
		w.NotEnforced = append(w.NotEnforced, "device rules: "+w.DevicesReason)
	}
	if !info.Freeze {
		w.NotEnforced = append(w.NotEnforced, "time shares: nothing can be frozen ("+info.Detail+")")
	}
	w.NotEnforced = append(w.NotEnforced, missingLimits(info)...)
	return w
}

// missingLimits names the limits that are not enforced here.
func missingLimits(info cgroup.Info) []string {
	var out []string
	for _, name := range cgroup.LimitNames() {
		if !slices.Contains(info.Limits, name) {
			out = append(out, name+" limits: not on "+info.Adapter)
		}
	}
	return out
}
