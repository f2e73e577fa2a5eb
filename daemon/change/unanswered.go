package change

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// leftHeld are the GPUs that the apply of a spec left as they are, because they did not answer.
func (cs *Changes) leftHeld(r *engine.Record, node *observe.Node) []api.HeldGPU {
	if r.Kind != state.KindApply {
		return nil
	}
	busy := gpusOf(r.Steps)
	return slices.DeleteFunc(planner.Unanswered(cs.State.Desired(), node), func(h api.HeldGPU) bool { return busy[gpu.UUID(h.GPU)] })
}

// heldAfter are the GPUs that are held after the steps of a proposal.
func (cs *Changes) heldAfter(p *state.Proposal, problems map[gpu.UUID]error) []api.Unreachable {
	held := cs.State.Held()
	if p.Intent.Accepts() { // The new spec takes up the others again.
		maps.DeleteFunc(held, func(id gpu.UUID, _ string) bool { return !p.AwaitBoot[id] })
	}
	return planner.StillHeld(held, p.AwaitBoot, p.Node, p.Steps, problems)
}

// unreached is what a change left as it is although none of its steps failed: GPUs that wait for a boot, and what cannot be read.
func (cs *Changes) unreached(r *engine.Record, node *observe.Node, failed map[gpu.UUID]string) []api.Unreachable {
	switch r.Kind {
	case state.KindUnmanage:
		return planner.UnreadParts(node, planner.NodeInput{})
	case state.KindApply:
	default:
		return nil
	}
	held := cs.State.Held()
	maps.DeleteFunc(held, func(id gpu.UUID, _ string) bool { return failed[id] != "" })
	return planner.StillHeld(held, cs.State.AwaitingBoot(cs.State.Desired(), node), node, r.Steps, nil)
}

// reachUnanswered changes the GPUs that did not answer when the spec in force was applied, and answer now. It has no authority:
// a GPU that it cannot change is held, with the reason. It reports whether it has planned all of them.
func (cs *Changes) reachUnanswered(node *observe.Node) bool {
	want := cs.State.Desired()
	for _, id := range state.Unreached(cs.State.Stored(), want, node) {
		if !cs.reachOne(want, node, id) {
			return false // The next pass plans the others.
		}
	}
	return true
}

// reachOne plans one GPU while no other change is planned, and reports whether the next one may be planned at once.
func (cs *Changes) reachOne(want *state.Desired, node *observe.Node, id gpu.UUID) bool {
	next := false
	cs.Briefly(func() { next = cs.planOne(want, node, id) })
	return next
}

func (cs *Changes) planOne(want *state.Desired, node *observe.Node, id gpu.UUID) bool {
	if cs.State.Changing() != nil || cs.State.Desired() != want {
		return false
	}
	ctx, cancel := context.WithTimeout(cs.Tasks.Context(), observe.Timeout)
	defer cancel()
	g, _ := node.GPU(id)
	p := &state.Proposal{
		Intent:  state.ToRetry,
		GPU:     id,
		Want:    want,
		Node:    node,
		Command: fmt.Sprintf("gpushare gpu retry %s", g.Identity.Argument()),
	}
	err := cs.planProposal(ctx, p, remarks{}, planner.Authority{})
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		cs.recordHeld(id, want.Generation, err.Error())
		return true
	}
	op, err := cs.Accept(ctx, p, "gpushared", planner.Authority{})
	if err != nil {
		cs.Log.Error("cannot change a GPU that answers again", "gpu", id, "error", err)
	}
	return err == nil && op == nil
}

// recordHeld records that no change touches a GPU until a retry.
func (cs *Changes) recordHeld(id gpu.UUID, generation uint64, reason string) {
	err := cs.State.Store.Update(func(s *store.State) error {
		closing.CloseHeld(s, id, generation, reason, "", cs.Now())
		return nil
	})
	if err != nil {
		cs.Log.Error("cannot record that a GPU is held", "gpu", id, "error", err)
		return
	}
	cs.Events.Publish(api.Event{Kind: "gpu.held", GPU: string(id), Message: reason})
}

// voidUnconfirmed forgets what changes may have created in an earlier boot or load of the driver.
func (cs *Changes) voidUnconfirmed(node *observe.Node) {
	if node.DriverErr != nil || cs.State.Changing() != nil || !state.VoidUnconfirmed(cs.State.Stored(), node, true) {
		return
	}
	err := cs.State.Store.Update(func(s *store.State) error {
		state.VoidUnconfirmed(s, node, false)
		return nil
	})
	if err != nil {
		cs.Log.Error("cannot record that instances ended with the boot", "error", err)
	}
}
