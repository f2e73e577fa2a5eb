package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// The kinds of step that end a lease. Nothing brings it back: they have no undo.
const (
	KindLeaseStop    = "lease.stop"    // with its processes
	KindLeaseRelease = "lease.release" // on the books only
)

// leaseStopArgs are the arguments of both.
type leaseStopArgs struct {
	Lease string `json:"lease"`
}

// planStops ends the leases that cannot go on under a spec: their grant is gone, their GPU is for something else, or
// their instance goes. It is pure; whoever admits the plan asks for authority. They are steps of the node, not of a GPU:
// those come first, before slices are taken away and before any GPU of a lease with several is changed.
func planStops(want *desired, live []lease.Lease, hardware []step.Step) []step.Step {
	var out []step.Step
	for i := range live {
		l := &live[i]
		if reason := whyStop(want, l, hardware); reason != "" {
			out = append(out, stopStep(l, reason))
		}
	}
	return out
}

func stopStep(l *lease.Lease, reason string) step.Step {
	return step.Step{
		Kind: KindLeaseStop, Phase: step.Narrow, Args: step.Must(leaseStopArgs{l.ID}),
		Text: "stop lease " + l.ID, Reason: reason, Disruption: step.Running, Disturbs: []string{fmt.Sprintf("%s of %s", l.ID, l.User)},
	}
}

func whyStop(want *desired, l *lease.Lease, hardware []step.Step) string {
	may, ok := want.grants[grantKey{l.Terms.Tenant, l.Terms.Spec.Name}]
	if !ok {
		if l.Held == lease.HeldLogin || l.Held == lease.HeldUnit {
			return "" // It is let go of when the spec is in force, and nobody is stopped for that.
		}
		return fmt.Sprintf("the spec has no grant %s of %s any more", l.Terms.Spec.Name, l.Terms.Tenant)
	}
	for _, id := range l.Place.GPUs {
		if mode := want.mode(id); mode != l.Terms.Kind() {
			return fmt.Sprintf("its GPU becomes %s", mode)
		}
		if !slices.Contains(may, id) {
			return fmt.Sprintf("grant %s of %s may not use its GPU any more", l.Terms.Spec.Name, l.Terms.Tenant)
		}
		if l.Place.Instance != nil && destroys(hardware, id, *l.Place.Instance) {
			return "its MIG instance goes"
		}
	}
	return ""
}

func destroys(hardware []step.Step, id gpu.UUID, at gpu.Placement) bool {
	return slices.ContainsFunc(hardware, func(s step.Step) bool {
		var args mig.InstanceArgs
		return s.Kind == mig.KindDestroy && s.GPU == string(id) && json.Unmarshal(s.Args, &args) == nil && args.Placement == at
	})
}

// leaseStop carries out the steps that end leases.
type leaseStop struct{ d *Changes }

// Applied tells whether the lease is gone.
func (h leaseStop) Applied(_ context.Context, s step.Step) (bool, error) {
	l, err := h.lease(s)
	return l == nil, err
}

// Do ends the lease, with its processes the polite way, and returns when it is gone.
func (h leaseStop) Do(ctx context.Context, s step.Step) error {
	l, err := h.lease(s)
	if err != nil || l == nil {
		return err
	}
	if s.Kind == KindLeaseStop {
		return h.d.leases.stopLease(ctx, l, s.Reason, stopGrace)
	}
	if err := h.d.table.Ended(ctx, l.ID, s.Reason); err != nil {
		return err
	}
	return h.d.stopper.awaitGone(ctx, l.ID)
}

// Undo does nothing: who was stopped stays stopped.
func (h leaseStop) Undo(context.Context, step.Step) error { return nil }

func (h leaseStop) lease(s step.Step) (*lease.Lease, error) {
	var args leaseStopArgs
	if err := json.Unmarshal(s.Args, &args); err != nil {
		return nil, fmt.Errorf("cannot read which lease to stop: %w", err)
	}
	l, ok := h.d.table.Get(args.Lease)
	if !ok {
		return nil, nil
	}
	return &l, nil
}
