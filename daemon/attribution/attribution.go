package attribution

import (
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// Attribution tells whose process it is, and who uses what.
type Attribution struct {
	*report.Reporter
	// HostRoot is where the host is.
	HostRoot     string
	State        *state.State
	Port         cgroup.Port
	Follow       *cgroup.Processes
	Attachments  *cgroup.Attachments
	WorkerPID    func() int // of the NVML worker; 0 when none runs
	Observer     *observe.Observer
	Table        *lease.Table
	CanStopUnits bool // units can be stopped here
	Hosts        *isolation.HostCache
	rates        rates
}
