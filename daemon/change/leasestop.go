package change

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
)

// LeaseStop carries out the steps that end leases.
type LeaseStop struct{ D *Changes }

// Applied reports whether the lease has ended.
func (h LeaseStop) Applied(_ context.Context, s step.Step) (bool, error) {
	l, err := h.lease(s)
	return l == nil, err
}

// Do ends the lease and returns when it has ended. KindLeaseStop stops its processes: SIGTERM, then SIGKILL.
func (h LeaseStop) Do(ctx context.Context, s step.Step) error {
	l, err := h.lease(s)
	if err != nil || l == nil {
		return err
	}
	if s.Kind == planner.KindLeaseStop {
		return h.D.Leases.StopLease(ctx, l, s.Reason)
	}
	if err := h.D.Table.Ended(ctx, l.ID, s.Reason); err != nil {
		return err
	}
	return h.D.Stopper.AwaitEnded(ctx, l.ID)
}

// Undo does nothing: stopped processes stay stopped.
func (h LeaseStop) Undo(context.Context, step.Step) error { return nil }

func (h LeaseStop) lease(s step.Step) (*lease.Lease, error) {
	var args planner.LeaseStopArgs
	if err := json.Unmarshal(s.Args, &args); err != nil {
		return nil, fmt.Errorf("cannot read which lease to stop: %w", err)
	}
	l, ok := h.D.Table.Get(args.Lease)
	if !ok {
		return nil, nil
	}
	return &l, nil
}
