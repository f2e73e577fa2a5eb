package status

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
)

// GetPlan returns the steps from the node as it is to the spec in force.
func (v *Viewer) GetPlan(c *server.Call) error {
	ctx, cancel := context.WithTimeout(c.Ctx(), observe.Timeout)
	defer cancel()
	node := v.Observer.Observe(ctx)
	if node.DriverErr != nil {
		return report.DriverError(node.DriverErr)
	}
	want := v.State.Desired()
	out, err := v.plan(ctx, node, want)
	if err != nil {
		return err
	}
	out.Warnings = append(out.Warnings, planner.IrreversibleInstances(want, node)...)
	return c.Reply(http.StatusOK, out)
}

// plan plans the spec in force, without authority.
func (v *Viewer) plan(ctx context.Context, node *observe.Node, want *state.Desired) (*api.Plan, error) {
	out := &api.Plan{SchemaVersion: 1, Generation: want.Generation, Observe: want.Spec != nil && !want.Enforcing()}
	if v.State.SpecUnread() {
		out.Unreachable = append(
			out.Unreachable,
			api.Unreachable{Reason: "the accepted spec cannot be read by this version", Hint: "apply a spec that this version reads"},
		)
	}
	use := v.Attribution.UsageUnder(want, v.Attribution.OpenDevices(ctx, node.GPUs))
	use.Done = ctx.Done()
	gpuSteps := planner.PlanGPUs(want, node, use, planner.Authority{})
	if out.Observe { // What is not reached without a permission has a reason of its own on a node that enforces.
		gpuSteps.PlanRefusedResets(want, node, use, planner.Authority{})
	}
	out.Held = gpuSteps.TakeUnanswered(want, node)
	caps := v.Power.Plan(ctx, want.PowerTargets(node), true)
	gpuSteps.Steps = append(gpuSteps.Steps, caps.Steps...)
	awaiting := v.State.AwaitingBoot(want, node)
	gpuSteps.TakeAwaitingBoot(awaiting, want, node, use)
	in := v.Policy.NodeInput(want, node, gpuSteps.Steps)
	nodeSteps, err := planner.PlanNodeSteps(want, node, in)
	if err != nil {
		return nil, err
	}
	stops := planner.PlanClosingStops(want, want, node, use)
	steps := planner.Number(planner.WithoutHeld(slices.Concat(nodeSteps.Before, stops, gpuSteps.Steps, nodeSteps.After), out.Held))
	if out.Observe {
		out.Warnings = planner.WouldRefuse(&gpuSteps, steps, planner.Authority{})
	} else {
		for _, id := range slices.Sorted(maps.Keys(gpuSteps.Problems)) {
			out.Warnings = append(out.Warnings, gpuSteps.Problems[id].Error())
		}
	}
	out.Warnings = append(out.Warnings, planner.IrreversibleWarnings(steps, node)...)
	removes := func(id gpu.UUID) bool { return want.Enforcing() && want.Manages(id) }
	out.Unreachable = slices.Concat(
		out.Unreachable, planner.UnreachableGPUs(gpuSteps.Problems, node, removes),
		planner.StillHeld(v.State.Held(), awaiting, node, steps, gpuSteps.Problems), planner.UnlimitedGPUs(caps.Problems, out.Held),
		planner.UnreadParts(node, in),
	)
	out.Steps, out.Empty = state.WireSteps(steps), len(steps) == 0
	return out, nil
}
