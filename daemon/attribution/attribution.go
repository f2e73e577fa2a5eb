package attribution

import (
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/kernel/opener"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// Attribution finds the lease of a process, and the users of devices and slices.
type Attribution struct {
	*report.Reporter
	// HostRoot is the root directory of the host.
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
	openers      opener.Reader
}
