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
	"github.com/gpushare/gpushare/internal/observe"
)

// GetPlan returns the steps from the node as it is to the spec in force.
func (v *Viewer) GetPlan(c *server.Call) error {
	ctx, cancel := context.WithTimeout(c.Ctx(), observe.Timeout)
	defer cancel()
	node, want := v.Observer.Observe(ctx), v.State.Desired()
	if node.DriverErr != nil {
		return report.DriverError(node.DriverErr)
	}
	out := api.Plan{SchemaVersion: 1, Generation: want.Generation, Observe: want.Spec != nil && !want.Enforcing(), Steps: []api.PlanStep{}}
	use := v.Attribution.Usage()
	use.Done = ctx.Done()
	gpuSteps := planner.PlanGPUs(want, node, use, planner.Authority{})
	out.Held = gpuSteps.TakeUnanswered(want, node)
	for _, id := range slices.Sorted(maps.Keys(gpuSteps.Problems)) {
		out.Warnings = append(out.Warnings, gpuSteps.Problems[id].Error())
	}
	nodeSteps, err := planner.PlanNodeSteps(want, node, v.Policy.NodeInput(want, node, gpuSteps.Steps))
	if err != nil {
		return err
	}
	out.Steps = state.WireSteps(planner.Number(planner.WithoutHeld(slices.Concat(nodeSteps.Before, gpuSteps.Steps, nodeSteps.After), out.Held)))
	out.Empty = len(out.Steps) == 0
	return c.Reply(http.StatusOK, out)
}
