package change

import (
	"bytes"
	"context"
	"slices"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// order puts the steps in their order: leases and processes are stopped before what they use changes, units around all of it.
func (cs *Changes) order(ctx context.Context, p *state.Proposal, d *draft, a planner.Authority) (err error) {
	stops := planner.PlanStops(p.Want, p.Node, d.live, d.hardware.Steps, d.removed)
	steps := slices.Concat(stops, d.node.Before, cs.planProcessStops(p, d), d.hardware.Steps, d.node.After)
	steps = planner.WithoutHeld(steps, d.held)
	if !a.Force && !p.Intent.OneGPU() {
		steps = planner.WithoutRestarts(steps, p.Node)
	}
	// The isolation changes with the GPU: access to a removed instance is revoked before another instance takes its place.
	steps = slices.DeleteFunc(steps, func(s step.Step) bool { return s.GPU != "" && !p.Concerns(gpu.UUID(s.GPU)) })
	if d.quiesce, err = cs.Quiesce(ctx, p.Want, d.use, steps); err != nil {
		return err
	}
	// Leases get their grace period before units are stopped.
	steps = slices.Insert(steps, planner.CountLeading(steps, planner.KindLeaseStop), d.quiesce.Stop...)
	p.Steps = planner.Number(append(steps, d.quiesce.Start...))
	return nil
}

// planProcessStops stops what uses a GPU that changes or is closed, each once.
func (cs *Changes) planProcessStops(p *state.Proposal, d *draft) []step.Step {
	steps := planner.PlanProcessStops(d.hardware.Steps, p.Node, d.use)
	for _, s := range planner.PlanClosingStops(cs.State.Desired(), p.Want, p.Node, d.use) {
		if !slices.ContainsFunc(steps, func(o step.Step) bool { return o.GPU == s.GPU && bytes.Equal(o.Args, s.Args) }) {
			steps = append(steps, s)
		}
	}
	return steps
}
