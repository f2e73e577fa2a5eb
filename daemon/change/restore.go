package change

import (
	"context"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// planRestore plans what a boot removed: the recorded layouts at their placements. A GPU that never reached the accepted spec
// is planned once more, without authority.
func (cs *Changes) planRestore(
	ctx context.Context, want *state.Desired, node *observe.Node, lost map[gpu.UUID]bool,
) ([]step.Step, map[gpu.UUID]error) {
	var steps []step.Step
	problems := map[gpu.UUID]error{}
	st, use := cs.State.Stored(), cs.Attribution.UsageUnder(want, cs.Attribution.OpenDevices(ctx, node.GPUs))
	for _, id := range slices.Sorted(maps.Keys(lost)) {
		g, ok := node.GPU(id)
		if !ok || g.Err != nil {
			continue // It is planned when it answers.
		}
		a, known := st.Achieved[id]
		a.Layout = planner.RestoredLayout(want, id, &a)
		var more []step.Step
		var err error
		if known && a.Generation == want.Generation && want.Mode(id) == api.ModeMIG && a.MIG && (g.Profiles != nil || !g.MIG.Current) {
			more, err = planner.RestoreGPU(want.GPUs[id], g, a.Layout, use)
		} else {
			more, err = planner.PlanGPU(want.GPUs[id], g, use, planner.Authority{})
		}
		if err != nil {
			problems[id] = err
			continue
		}
		steps = append(steps, more...)
	}
	quiesce, err := cs.planQuiesce(ctx, want, use, steps)
	if err != nil {
		cs.Log.Warn("cannot stop units for the restore of layouts", "error", err)
	}
	return slices.Concat(quiesce.Stop, steps, quiesce.Start), problems
}
