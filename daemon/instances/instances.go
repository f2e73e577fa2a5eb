package instances

import (
	"context"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// Instances creates and removes single MIG instances.
type Instances struct {
	*report.Reporter
	State       *state.State
	Tasks       *loop.Group
	Observer    *observe.Observer
	Table       *lease.Table
	Attribution *attribution.Attribution
	Policy      *devicepolicy.Policy
	Changes     changes
	Refresh     func(ctx context.Context, node *observe.Node) // the converge loop's, after the state has changed
	Wake        func()                                        // wakes the converge loop
	Due         loop.Wake                                     // a request needs one, or a lease or a change ended

	idle idleInstances
}

// changes carries out what is planned here.
type changes interface {
	// Exclusive calls f while no other change is planned or open.
	Exclusive(ctx context.Context, f func() error) error
	// Briefly calls f, which takes a short time, while no other change is planned. It reports whether it did. Callers that want to
	// change the node wait for it and are not refused.
	Briefly(f func()) bool
	// Begin records a change, and in the same write what also records, and carries it out. It must be called in one of the above. open
	// takes the place of a change that was marked as open while this one was planned; nil: there was none.
	Begin(r *engine.Record, plan api.Plan, open *state.OpenChange, also func(*store.State)) (*api.Operation, error)
	// Quiesce plans the stop and the later start of the services that have a GPU open which these steps change.
	Quiesce(ctx context.Context, want *state.Desired, use planner.Usage, steps []step.Step) (planner.QuiescePlan, error)
}
