package change

import (
	"context"
	"maps"
	"slices"
	"strings"

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

// closeChange reads the node back, records the outcome and reports it. begun returns the steps of a GPU that may have been begun.
func (cs *Changes) closeChange(
	ctx context.Context, r engine.Record, operation string, out engine.Outcome, begun func(id string) []step.Step,
) {
	want := cs.State.Desired()
	observeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), observe.Timeout)
	defer cancel()
	cs.Observer.Invalidate() // A mode change changes device minors and profiles.
	node := cs.Observer.Observe(observeCtx)
	cs.State.SetLastChangeSeq(node.Seq)
	cs.Policy.UnknownOutcome.Record(node, r.Steps)
	failed := failures(out)
	gpus := gpusOf(r.Steps)
	stopped := cs.stoppedUnits(observeCtx, &r)
	empty := r.Kind == state.KindUnmanage && out.State() == engine.Reached && cs.Unmanage.NothingRemains(node, want)
	err := cs.State.Store.Finish(func(s *store.State) error {
		s.Change = nil
		state.NoteTimes(s, node, r.Steps, cs.State.Changing().Durations)
		for _, unit := range stopped {
			if !slices.Contains(s.StoppedUnits, unit) {
				s.StoppedUnits = append(s.StoppedUnits, unit)
			}
		}
		for id := range gpus {
			g, ok := node.GPU(id)
			reason, bad := failed[id]
			switch {
			case bad:
				boot := ""
				if out[string(id)].State == engine.Deferred {
					boot = node.Epoch.Boot
				}
				closing.CloseHeld(s, id, want.Generation, reason, boot, cs.Now())
				if !ok || g.Err != nil {
					g = nil
				}
				state.NoteUnconfirmed(s, id, g, out[string(id)].Unknown(), state.Epoch(node), begun(string(id)), cs.Now())
			case out[string(id)].Dropped > 0:
				// A boot removed the instances of its steps. The achieved state stays recorded with its former epoch, so the
				// converge loop plans the GPU again.
			case !ok || !want.Manages(id), r.Kind == state.KindMPSRestart: // A restart changes nothing that is recorded.
			case state.ChangesOwnership(r.Kind) && closing.Held.Closes(s, id):
				state.RecordOwnership(s, id, r.Steps) // It is still not as the spec says.
			case g.Err == nil:
				state.RecordAchieved(s, want, g, state.Epoch(node), r.Steps)
				cs.resets.noteOne(id)
			default:
				if err := state.RecordUnread(s, want, g, state.Epoch(node), r.Steps); err != nil {
					cs.Log.Error("cannot record the layout of a GPU", "gpu", id, "error", err)
				}
			}
		}
		if r.Kind == state.KindUnmanage {
			state.RecordUnmanaged(s, want, node, failed, empty)
		}
		return nil
	})
	if err != nil {
		cs.Conditions.Set(
			"state", "close", "cannot record the end of a change: "+err.Error(),
			state.FreeSpace(cs.State.Store.Path())+"; the change is resumed at the next start",
		)
		cs.Log.Error("cannot record the end of a change", "operation", operation, "error", err)
	} else {
		cs.Conditions.Clear("state", "close")
	}
	// Node steps that the changed hardware now allows: access is granted by the observed state.
	nodeErr := cs.Converger.Converge(context.WithoutCancel(ctx), r.Steps)
	ch := cs.State.EndChange()
	cs.Converger.Refresh(
		context.WithoutCancel(ctx), cs.Observer.Last(),
	) // Before the end is reported: a client that waited for it reads the status next.
	cs.endPendingInstances(ch, failed)
	cs.endOperation(operation, node, &r, failed, out, nodeErr)
	cs.Wake() // What the loop could not compare while the change was open is due.
}

// endPendingInstances reports the outcome to the requests that waited for instances, and wakes the loop for the next ones.
func (cs *Changes) endPendingInstances(ch *state.OpenChange, failed map[gpu.UUID]string) {
	if ch != nil && len(ch.Pending) > 0 {
		bad := maps.Clone(ch.Failed)
		for id := range failed {
			bad[id] = true
		}
		cs.Table.FinishPendingInstances(ch.Pending, bad)
	}
	if ch != nil && ch.Ended != nil {
		close(ch.Ended)
	}
	cs.Idle()
}

func (cs *Changes) endOperation(
	operation string, node *observe.Node, r *engine.Record, failed map[gpu.UUID]string, out engine.Outcome, nodeErr error,
) {
	if warnings := planner.OneWayWarnings(r.Steps, node); len(warnings) > 0 { // What was created says what this driver reports.
		cs.Operations.Update(operation, func(o *api.Operation) {
			o.Plan.Warnings = append(
				slices.Clip(o.Plan.Warnings),
				slices.DeleteFunc(warnings, func(w string) bool { return slices.Contains(o.Plan.Warnings, w) })...)
		})
	}
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(failed)) {
		name := string(id)
		if g, ok := node.GPU(id); ok {
			name = g.Identity.Name()
		}
		parts = append(parts, name+" is held: "+failed[id])
		cs.Events.Publish(api.Event{Kind: "gpu.held", GPU: string(id), Message: failed[id]})
	}
	for _, id := range slices.Sorted(maps.Keys(out)) {
		if l := out[id]; id != "" && l.State == engine.Reached && l.Dropped > 0 {
			parts = append(parts, id+": the host was booted or the driver reloaded during the change; lost instances are created again now")
		}
	}
	if l := out[""]; l.Reason != "" {
		parts = append(parts, l.Reason)
	}
	if nodeErr != nil {
		parts = append(parts, nodeErr.Error())
	}
	hint := outcomeHint(out, node, r.Steps)
	if held := cs.leftHeld(r, node); len(held) > 0 {
		if len(parts) == 0 {
			hint = planner.HeldHint(held)
		}
		parts = append(parts, planner.HeldText(held))
	}
	for _, u := range cs.unreached(r, node, failed) {
		if len(parts) == 0 {
			hint = u.Hint
		}
		parts = append(parts, u.Reason)
	}
	if len(parts) == 0 {
		cs.Operations.End(operation, "done", nil)
		cs.Events.Publish(api.Event{Kind: "change.done", Message: operation + " is done"})
		return
	}
	message := strings.Join(parts, "; ")
	cs.Operations.End(operation, "degraded", &api.Error{
		Kind: api.KindDegraded, Message: "the change is incomplete: " + message, Hint: hint,
	})
	cs.Events.Publish(api.Event{Kind: "change.degraded", Message: operation + ": " + message})
	cs.Log.Warn("a change ended degraded", "message_id", report.MessageChangeDegraded, "operation", operation, "reason", message)
}
