package converge

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// Converger is the loop that observes the node and corrects what needs no authority.
type Converger struct {
	*report.Reporter
	State    *state.State
	Driver   gpu.Driver
	Observer *observe.Observer
	Engine   *engine.Engine
	Port     cgroup.Port
	Table    *lease.Table
	Notify   serviceManager
	Logins   *devicepolicy.LoginFilter
	Signal   loop.Wake
	// ConvergeInterval is the time between two passes without a wake-up.
	ConvergeInterval func() time.Duration
	Wake             func()
	ThawReady        func() error
	Identities       *server.Identities
	Attribution      *attribution.Attribution
	Policy           *devicepolicy.Policy
	Changes          changes
	Unmanage         unmanager
	MemoryLimits     memoryLimits
	MPSAccess        mpsAccess
	MPSFaults        mpsFaults
	// SuspectMPS makes the next observations of the control daemons of a GPU look for a fault.
	SuspectMPS func(on gpu.UUID, xid uint64)
	Health     gpuHealth
	Power      powerCaps
	Files      files

	Drift         drift
	NoProcess     noProcess
	unmetReserved unmetReserved
	watching      watching
	said          string // to the service manager; only the loop uses it
}

// serviceManager gets reports that the loop advances, and of what a pass found.
type serviceManager interface {
	Watchdog() error
	WatchdogInterval() time.Duration // 0: there is no watchdog
	Status(text string) error
}

// files compares the files of the daemon with their names.
type files interface {
	Check(ctx context.Context)
}

// memoryLimits keeps the driver's limits of GPU memory.
type memoryLimits interface {
	Converge(ctx context.Context, node *observe.Node, corrected func(tenant, lease, text string))
	HardMemory() map[gpu.UUID]state.HardMemory
}

// mpsAccess keeps who reaches the sockets of MPS.
type mpsAccess interface {
	// Run looks for processes that keep others out, until ctx ends.
	Run(ctx context.Context)
	Converge(ctx context.Context, node *observe.Node, corrected func(tenant, lease, text string))
}

// mpsFaults reports the fatal faults of clients of MPS.
type mpsFaults interface {
	// Run ends what stays after a fault, until ctx ends.
	Run(ctx context.Context)
	Converge(node *observe.Node)
}

// gpuHealth closes GPUs that have trouble of their own, and opens them again.
type gpuHealth interface {
	Converge(node *observe.Node)
	// XID takes an XID of the driver's events. It does not wait for the GPU.
	XID(e gpu.Event)
}

// changes is what the loop needs of package change.
type changes interface {
	// Restore reports whether it has compared every managed GPU that answers with the spec.
	Restore(node *observe.Node) (compared bool)
	RestartUnits(ctx context.Context)
}

// unmanager is what the loop needs of package unmanage.
type unmanager interface {
	// RemainingSteps returns how many steps are left to unmanage the node, and the first of them.
	RemainingSteps(node *observe.Node) (n int, first string, err error)
}
