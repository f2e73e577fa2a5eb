package unmanage

import (
	"context"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/power"
)

// Unmanaging ends the management of the node.
type Unmanaging struct {
	*report.Reporter
	CDIDir      string
	NodeName    string // what engines call this host
	State       *state.State
	Tasks       *loop.Group
	Port        cgroup.Port
	Observer    *observe.Observer
	Table       *lease.Table
	Logins      *devicepolicy.LoginFilter
	Attribution *attribution.Attribution
	Policy      *devicepolicy.Policy
	Power       *power.Caps
	Changes     changes
	Memory      memoryLimits
	Adopter     loginLimiter
}

// changes carries out what is planned here.
type changes interface {
	// Alone calls f while no other change is planned or open, also in a maintenance.
	Alone(ctx context.Context, f func() error) error
	Accept(ctx context.Context, p *state.Proposal, caller string, a planner.Authority) (*api.Operation, error)
	// Quiesce plans the stop and the later start of the services that have a GPU open which these steps change.
	Quiesce(ctx context.Context, want *state.Desired, use planner.Usage, steps []step.Step) (planner.QuiescePlan, error)
}

// memoryLimits keeps the driver's limits of GPU memory.
type memoryLimits interface {
	// Attached counts the limits on cgroups of other managers, and RemoveAttached removes them.
	Attached(ctx context.Context) (int, error)
	RemoveAttached(ctx context.Context) error
}

// loginLimiter is what is needed of the limits of logins.
type loginLimiter interface {
	LimitedUsers() (int, error)
	AdoptAll(ctx context.Context) error
}
