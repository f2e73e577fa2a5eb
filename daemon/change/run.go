package change

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
)

// changeTimeout is the deadline of one change.
const changeTimeout = 10 * time.Minute

// launch carries out a recorded change in the background. open is what it is marked open as; nil: what its record says.
func (cs *Changes) launch(r engine.Record, plan api.Plan, open *state.OpenChange) api.Operation {
	op := cs.Operations.Begin(r.ID, r.Kind, r.By, plan)
	if open != nil { // Its GPUs are closed already.
		open.Operation = op.ID
		cs.State.SetChanging(open)
	} else {
		cs.Open(op.ID, &r)
		cs.Table.Update(planner.View(cs.State, cs.Observer.Last(), cs.Now()))
	}
	cs.Invalidate()
	cs.Tasks.Go(func() {
		ctx, cancel := context.WithTimeout(cs.Tasks.Context(), changeTimeout)
		defer cancel()
		cs.carryOut(ctx, r, op.ID, false)
	})
	return op
}

// Open marks a change as open. It waits for a running correction.
func (cs *Changes) Open(operation string, r *engine.Record) {
	ch := &state.OpenChange{Operation: operation, GPUs: gpusOf(r.Steps)}
	switch r.Kind {
	case state.KindUnmanage:
		ch.GPUs = state.EveryGPU(cs.Observer.Last()) // No lease starts while the leases end.
	case state.KindDynamic: // Of a previous run: the requests that waited for its instances are repeated.
		ch.Brief, ch.Ended = true, make(chan struct{})
	}
	cs.State.SetChanging(ch)
}

func gpusOf(steps []step.Step) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	for i := range steps {
		if steps[i].GPU != "" {
			out[gpu.UUID(steps[i].GPU)] = true
		}
	}
	return out
}

// carryOut runs the steps, reads the node back, records what was achieved, and closes the change.
func (cs *Changes) carryOut(ctx context.Context, r engine.Record, operation string, resumed bool) {
	ch := cs.State.Changing()
	hooks := engine.Hooks{
		Progress:     func(p engine.Progress) { ch.NoteDuration(&p); cs.progress(operation, p) },
		PrepareGrant: cs.Policy.Granter(),
	}
	var out engine.Outcome
	if resumed {
		out = cs.Engine.Resume(ctx, &r, state.Epoch(cs.Observer.Last()), hooks)
	} else {
		out = cs.Engine.Run(ctx, &r, hooks)
	}
	if out.State() == engine.Interrupted {
		cs.startStoppedUnits(ctx, &r)
		reason := "the daemon was stopped during the change"
		if cs.Tasks.Context().Err() == nil {
			reason = fmt.Sprintf("it took longer than %s", changeTimeout)
		}
		cs.Operations.End(operation, "failed", &api.Error{
			Kind:    api.KindUnavailable,
			Message: "the change is not finished: " + reason,
			Hint:    "it continues when the daemon is started again",
		})
		return // The record stays open, and the next run resumes it.
	}
	begun := func(id string) []step.Step { return out[id].Begun(r.Steps, id) }
	if resumed { // What the run before it began is not known.
		begun = func(string) []step.Step { return r.Steps }
	}
	cs.closeChange(ctx, r, operation, out, begun)
}

func (cs *Changes) progress(operation string, p engine.Progress) {
	if p.State == engine.Done && !p.Skipped {
		cs.Counters.Steps.Add(1)
	}
	cs.Operations.Update(operation, func(op *api.Operation) {
		for i := range op.Plan.Steps {
			if s := &op.Plan.Steps[i]; s.ID == p.Step {
				s.State, s.Seconds, s.WaitsFor = string(p.State), p.Duration.Seconds(), p.WaitsFor
				if p.Err != nil {
					s.Error = p.Err.Error()
				}
			}
		}
	})
}
