package change

import (
	"context"
	"strings"
	"time"

	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/specs"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/power"
)

// memoryLimits keeps the driver's limits of GPU memory.
type memoryLimits interface {
	// Refuse refuses a spec whose limits cannot be as hard as it says.
	Refuse(want *state.Desired, node *observe.Node) error
}

// Changes carries changes from their proposal to their end.
type Changes struct {
	*report.Reporter
	Settings    Settings
	State       *state.State
	Specs       *specs.Specs
	Tasks       *loop.Group
	Driver      gpuDriver
	Observer    *observe.Observer
	Engine      *engine.Engine
	Table       *lease.Table
	Services    Services
	Identities  *server.Identities
	Attribution *attribution.Attribution
	Policy      *devicepolicy.Policy
	Stopper     *stop.Stopper
	Converger   converger
	Memory      memoryLimits
	Unmanage    unmanager
	Health      gpuHealth
	Power       *power.Caps
	Leases      leaseStopper
	Wake        func() // wakes the converge loop
	Idle        func() // no change is planned any more, or none is open: instances that requests wait for are due

	resets resetDetector
	// planning is held while a short change is planned: a caller that wants to change the node waits for this time and is not refused.
	planning locks.Mutex[locks.Planning]
	applyMu  locks.Mutex[locks.Apply] // held from the plan of a change until it is open or refused
}

// converger is what a change needs of the converge loop.
type converger interface {
	Correct(ctx context.Context) error
	Converge(ctx context.Context, steps []step.Step) error
	Refresh(ctx context.Context, node *observe.Node)
}

// gpuHealth closes GPUs that have trouble of their own, and opens them again.
type gpuHealth interface {
	// Retry opens a GPU if its readings permit, and says why it stays closed.
	Retry(ctx context.Context, id gpu.UUID) error
}

// unmanager says what is left of an unmanaged node.
type unmanager interface {
	NothingRemains(node *observe.Node, want *state.Desired) bool
}

// leaseStopper stops leases.
type leaseStopper interface {
	StopLease(ctx context.Context, l *lease.Lease, reason string) error
}

// Settings are the settings for changes.
type Settings struct {
	HostRoot      string
	Host          string        // its name, for the commands of engines
	AnswerTimeout time.Duration // for driver calls that only read
	ChangeTimeout time.Duration // for driver calls that change a GPU
}

// NodeName is what engines call this host, if they were not configured otherwise: its name without the domain.
func (s *Settings) NodeName() string {
	name, _, _ := strings.Cut(s.Host, ".")
	return name
}

// gpuDriver is the driver. Retry admits a GPU again that the worker excluded because it did not answer.
type gpuDriver interface {
	gpu.Driver
	Retry(ctx context.Context, id gpu.UUID) error
}
