package change

import (
	"context"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// Restore creates the layouts of before a boot, a reload of the driver or a reset again, at the same placements. It reports whether it
// has compared every managed GPU that answers with the spec: what has to be done about them is in a change that is open now, or is
// recorded.
func (cs *Changes) Restore(node *observe.Node) bool {
	cs.voidUnconfirmed(node)
	want := cs.State.Desired()
	if !want.Enforcing() {
		return true // It observes.
	}
	if node.DriverErr != nil {
		cs.resets.note(node)
	}
	if node.DriverErr != nil || cs.State.Changing() != nil {
		return len(want.GPUs) == 0
	}
	lost := cs.lostGPUs(want, node)
	if len(lost) == 0 {
		cs.resets.note(node)
		return cs.reachUnanswered(node)
	}
	restored := false
	cs.Briefly(func() { restored = cs.restoreLost(want, node, lost) })
	return restored
}

// restoreLost plans the GPUs and begins a change of them. It reports whether that was recorded.
func (cs *Changes) restoreLost(want *state.Desired, node *observe.Node, lost map[gpu.UUID]bool) bool {
	ctx, cancel := context.WithTimeout(cs.Tasks.Context(), observe.Timeout)
	defer cancel()
	steps, problems := cs.planRestore(ctx, want, node, lost)
	record := &engine.Record{
		Kind:       state.KindRestore,
		By:         "gpushared",
		Generation: want.Generation,
		Started:    cs.Now(),
		Epoch:      state.Epoch(node),
		Steps:      planner.Number(steps),
	}
	if err := cs.recordRestore(record, want, node, lost, problems); err != nil {
		cs.Log.Error("cannot record the restore of layouts", "error", err)
		return false
	}
	cs.resets.note(node)
	if len(steps) > 0 {
		cs.Log.Info("layouts are restored", "message_id", report.MessageLayoutsRestored, "operation", record.ID, "steps", len(steps))
		cs.launch(*record, api.Plan{SchemaVersion: 1, Generation: want.Generation, Steps: state.WireSteps(record.Steps)}, nil)
	}
	return true
}

// lostGPUs are the GPUs that are to be planned again: they never were as the spec says, or a boot, a load of the driver or a reset has
// removed what was created.
func (cs *Changes) lostGPUs(want *state.Desired, node *observe.Node) map[gpu.UUID]bool {
	st, lost := cs.State.Stored(), map[gpu.UUID]bool{}
	for id := range want.GPUs {
		g, ok := node.GPU(id)
		if !ok || g.Err != nil || !want.Manages(id) {
			continue // Until it answers nothing can be planned or recorded.
		}
		due := state.AfterBoot(closing.AwaitedBoot(st, id), want, g, node)
		if closing.Held.Closes(st, id) && !due {
			continue
		}
		a, ok := st.Achieved[id]
		if !ok || due || state.EpochEnded(a.Epoch, node) || cs.resets.wasReset(&a, node, id) {
			lost[id] = true
		}
	}
	return lost
}

// recordRestore records the steps, the GPUs that need none, and those that cannot be restored.
func (cs *Changes) recordRestore(
	r *engine.Record, want *state.Desired, node *observe.Node, lost map[gpu.UUID]bool, problems map[gpu.UUID]error,
) error {
	return cs.State.Store.Update(func(s *store.State) error {
		s.Epoch = r.Epoch
		busy := gpusOf(r.Steps)
		for id := range lost {
			g, ok := node.GPU(id)
			if reason, bad := problems[id]; bad {
				closing.CloseHeld(s, id, want.Generation, reason.Error(), "", cs.Now())
			} else if ok && g.Err == nil && !busy[id] {
				state.RecordAchieved(s, want, g, r.Epoch, nil)
			}
		}
		if len(r.Steps) == 0 {
			return nil
		}
		recordFound(s, r.Steps)
		return recordChange(s, r)
	})
}

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
	quiesce, err := cs.Quiesce(ctx, want, use, steps)
	if err != nil {
		cs.Log.Warn("cannot stop units for the restore of layouts", "error", err)
	}
	return slices.Concat(quiesce.Stop, steps, quiesce.Start), problems
}
