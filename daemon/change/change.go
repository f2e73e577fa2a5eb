package change

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/outcome"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// auditText describes an accepted proposal in the audit.
func (p *proposal) auditText(a planner.Authority) string {
	out := fmt.Sprintf("%d steps, force=%v", len(p.steps), a.Force)
	if generation, ok := strings.CutPrefix(p.command, "gpushare rollback "); ok {
		out += ", back to generation " + generation
	}
	return out
}

// changeTimeout is the deadline of one change.
const changeTimeout = 10 * time.Minute

// accept stores the spec and the change record in one write, and starts the steps. Without steps, or on a node that only
// observes, it returns no operation.
func (cs *Changes) accept(ctx context.Context, p *proposal, caller string, a planner.Authority) (*api.Operation, error) {
	now := cs.Now()
	run := (p.want.Enforcing() || p.unmanage != "") && len(p.steps) > 0
	record := engine.Record{
		Kind:       p.kind(),
		By:         caller,
		Authority:  engine.Authority(a),
		Generation: p.want.Generation,
		Started:    now,
		Epoch:      state.Epoch(p.node),
		Steps:      p.steps,
	}
	err := cs.State.Store.Update(func(s *store.State) error {
		if s.Accepted != nil && s.Accepted.Unmanaged == store.UnmanagedAll {
			state.ForgetRestored(s, p.node) // The modes that they have now are those from before this spec.
		}
		switch {
		case p.same:
		case p.unmanage != "":
			s.Unmanage(p.yaml, caller, now, store.Resolved(p.resolved), p.unmanage)
		default:
			s.Accept(p.yaml, caller, now, store.Resolved(p.resolved))
		}
		s.Epoch = state.Epoch(p.node)
		state.RecordIdentities(s, p.node)
		s.ActiveRestrictions = s.ActiveRestrictions || p.want.Enforcing() || run
		if p.want.Enforcing() {
			cs.State.RecordSlices(s, p.want, p.node)
		}
		if p.unmanage == "" {
			recordFound(s, p.steps)
		} else if !run {
			state.RecordUnmanaged(s, p.want, p.node, nil, p.plan.Complete())
		}
		cs.recordAchievedGPUs(s, p)
		if !run {
			return nil
		}
		return recordChange(s, &record)
	})
	if err != nil {
		return nil, &api.Error{
			Kind:    api.KindUnavailable,
			Message: "the spec was not accepted: " + err.Error(),
			Hint:    "nothing was changed; free space in " + cs.Settings.StateDir + " and apply again",
		}
	}
	cs.Specs.Install(p.want)
	if p.unmanage == "" {
		cs.Events.Publish(api.Event{Kind: "spec.accepted", Message: fmt.Sprintf("generation %d, by %s", p.want.Generation, caller)})
	} else {
		cs.Events.Publish(api.Event{Kind: "node.unmanaged", Message: fmt.Sprintf("%s, by %s", p.unmanage, caller)})
	}
	if !run {
		// Instances that are managed now, and GPUs that are no longer held, are open when the caller gets the answer. The computed
		// isolation did not contain them.
		cs.Policy.Slices.Store(nil)
		if err := cs.Converger.Correct(ctx); err != nil && ctx.Err() == nil {
			cs.Log.Warn("cannot converge", "error", err)
		}
		cs.Converger.Refresh(ctx, cs.Observer.Last())
		cs.Wake() // The loop does what else follows from the new spec.
		return nil, nil
	}
	op := cs.launch(record, p.plan)
	return &op, nil
}

// recordAchievedGPUs records the GPUs that are as desired already. No step changes them, so no step would record them.
func (cs *Changes) recordAchievedGPUs(s *store.State, p *proposal) {
	if !p.want.Enforcing() {
		return
	}
	busy := gpusOf(p.steps)
	for i := range p.node.GPUs {
		g := &p.node.GPUs[i]
		if id := g.Identity.UUID; p.want.Manages(id) && !busy[id] && !p.awaitBoot[id] && g.Err == nil && p.concerns(id) {
			state.RecordAchieved(s, p.want, g, state.Epoch(p.node), nil)
			cs.resets.noteOne(id)
		}
	}
	state.RecordLeft(s, p.want)
	for id := range s.Held {
		if g, ok := p.node.GPU(id); !p.want.Manages(id) || !p.awaitBoot[id] && !busy[id] && p.concerns(id) && (!ok || g.Err == nil) {
			delete(s.Held, id)
		}
	}
	maps.DeleteFunc(s.DrainedMPS, func(id gpu.UUID, _ store.DrainedMPS) bool { return p.want.Mode(id) != api.ModeMPS })
	s.HeldBackMPS = slices.DeleteFunc(s.HeldBackMPS, func(h store.HeldBackMPS) bool { return !p.want.HasMPS(h.GPU, h.Instance.Size > 0) })
	s.DrainedInstances = slices.DeleteFunc(s.DrainedInstances, func(d store.DrainedInstance) bool { return !p.want.HasMPS(d.GPU, true) })
	for id := range s.OriginalModes {
		if p.want.Mode(id) == api.ModeExternal {
			delete(s.OriginalModes, id) // Its external scheduler sets its modes from now on.
		}
	}
}

// recordChange numbers a change and stores its record.
func recordChange(s *store.State, r *engine.Record) error {
	s.LastOperation++
	r.ID = fmt.Sprintf("%s-%d", r.Kind, s.LastOperation)
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("internal error: cannot encode the change record: %w", err)
	}
	s.Change = b
	return nil
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

// Exclusive calls f while no other change is planned or open.
func (cs *Changes) Exclusive(ctx context.Context, f func() error) error {
	done, err := cs.lockChanges(ctx)
	if err != nil {
		return err
	}
	defer done()
	return f()
}

// Alone is Exclusive for what is also possible in a maintenance.
func (cs *Changes) Alone(ctx context.Context, f func() error) error {
	done, err := cs.lock(ctx)
	if err != nil {
		return err
	}
	defer done()
	return f()
}

// Submit carries out steps that no spec asks for. It must be called in Exclusive.
func (cs *Changes) Submit(
	kind, caller string, node *observe.Node, plan api.Plan, steps []step.Step, a planner.Authority,
) (*api.Operation, error) {
	r := engine.Record{
		Kind:       kind,
		By:         caller,
		Authority:  engine.Authority(a),
		Generation: plan.Generation,
		Started:    cs.Now(),
		Epoch:      state.Epoch(node),
		Steps:      steps,
	}
	if err := cs.State.Store.Update(func(s *store.State) error { return recordChange(s, &r) }); err != nil {
		return nil, &api.Error{
			Kind:    api.KindUnavailable,
			Message: "nothing was changed: " + err.Error(),
			Hint:    "free space in " + cs.Settings.StateDir + " and try again",
		}
	}
	op := cs.launch(r, plan)
	return &op, nil
}

// launch carries out a recorded change in the background.
func (cs *Changes) launch(r engine.Record, plan api.Plan) api.Operation {
	op := cs.Operations.Begin(r.ID, r.Kind, r.By, plan)
	cs.Open(op.ID, &r)
	cs.Table.Update(planner.View(cs.State, cs.Observer.Last()))
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
		ch.GPUs = everyGPU(cs.Observer.Last()) // No lease starts while the leases end.
	case state.KindDynamic: // Of a previous run: the requests that waited for its instances are repeated.
		ch.Brief, ch.Ended = true, make(chan struct{})
	}
	cs.State.SetChanging(ch)
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
	failed := outcome.Failures(out)
	gpus := gpusOf(r.Steps)
	stopped := cs.stoppedUnits(observeCtx, &r)
	empty := r.Kind == state.KindUnmanage && out.State() == engine.Reached && cs.nothingRemains(node, want)
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
				if s.Held == nil {
					s.Held = map[gpu.UUID]store.Held{}
				}
				h := store.Held{Generation: want.Generation, Reason: reason, Since: cs.Now()}
				if out[string(id)].State == engine.Deferred {
					h.Boot = node.Epoch.Boot
				}
				s.Held[id] = h
				if !ok || g.Err != nil {
					g = nil
				}
				state.NoteUnconfirmed(s, id, g, out[string(id)].Unknown(), state.Epoch(node), begun(string(id)), cs.Now())
			case out[string(id)].Dropped > 0:
				// A boot removed the instances of its steps. The achieved state stays recorded with its former epoch, so the
				// converge loop plans the GPU again.
			case !ok || !want.Manages(id), r.Kind == state.KindMPSRestart: // A restart changes nothing that is recorded.
			case changesOwnership(r.Kind) && isHeld(s, id):
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
			"free space in "+cs.Settings.StateDir+"; the change is resumed at the next start",
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
	cs.Dynamic.Wake()
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
	hint := outcome.Hint(out, node, r.Steps)
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

// Resume resumes the change that a previous run of the daemon left open, with the authority that it had.
func (cs *Changes) Resume(ctx context.Context) {
	raw := cs.State.Stored().Change
	if len(raw) == 0 {
		return
	}
	var r engine.Record
	if err := json.Unmarshal(raw, &r); err != nil {
		cs.Conditions.Set(
			"state", "change", "the open change cannot be read: "+err.Error(), "its steps are not resumed; apply the spec again",
		)
		return
	}
	cs.Log.Info(
		"an open change is resumed", "message_id", report.MessageChangeResumed, "operation", r.ID, "by", r.By, "steps", len(r.Steps),
	)
	op := cs.Operations.Begin(
		r.ID, "resume", r.By, api.Plan{SchemaVersion: 1, Generation: cs.State.Desired().Generation, Steps: state.WireSteps(r.Steps)},
	)
	cs.Open(op.ID, &r)
	cs.Tasks.Go(func() {
		run, cancel := context.WithTimeout(cs.Tasks.Context(), changeTimeout)
		defer cancel()
		cs.carryOut(run, r, op.ID, true)
	})
}

// Restore creates the layouts of before a boot, a reload of the driver or a reset again, at the same placements. It reports whether it
// has compared every managed GPU that answers with the spec: what has to be done about them is in a change that is open now, or is
// recorded.
func (cs *Changes) Restore(node *observe.Node) bool {
	cs.voidUnconfirmed(node)
	want, st := cs.State.Desired(), cs.State.Stored()
	if !want.Enforcing() {
		return true // It observes.
	}
	if node.DriverErr != nil || cs.State.Changing() != nil {
		return len(want.GPUs) == 0
	}
	lost := map[gpu.UUID]bool{}
	for id := range want.GPUs {
		g, ok := node.GPU(id)
		if !ok || g.Err != nil || !want.Manages(id) {
			continue // Until it answers nothing can be planned or recorded.
		}
		h, held := st.Held[id]
		due := held && state.AfterBoot(h, want, g, node)
		if held && !due {
			continue
		}
		a, ok := st.Achieved[id]
		if !ok || due || state.EpochEnded(a.Epoch, node) || cs.resets.wasReset(&a, node, id) {
			lost[id] = true
		}
	}
	if len(lost) == 0 {
		cs.resets.note(node)
		return cs.reachUnanswered(node)
	}
	cs.Dynamic.planning.Lock() // A caller that wants to change the node waits for this short time and is not refused.
	defer cs.Dynamic.planning.Unlock()
	if !cs.applyMu.TryLock() {
		return false
	}
	defer cs.applyMu.Unlock()
	ctx, cancel := context.WithTimeout(cs.Tasks.Context(), observe.Timeout)
	defer cancel()
	steps, problems := cs.planRestore(ctx, want, node, lost)
	record := engine.Record{
		Kind:       state.KindRestore,
		By:         "gpushared",
		Generation: want.Generation,
		Started:    cs.Now(),
		Epoch:      state.Epoch(node),
		Steps:      planner.Number(steps),
	}
	err := cs.State.Store.Update(func(s *store.State) error {
		s.Epoch = state.Epoch(node)
		busy := gpusOf(steps)
		for id := range lost {
			g, ok := node.GPU(id)
			if reason, bad := problems[id]; bad {
				if s.Held == nil {
					s.Held = map[gpu.UUID]store.Held{}
				}
				s.Held[id] = store.Held{Generation: want.Generation, Reason: reason.Error(), Since: cs.Now()}
			} else if ok && g.Err == nil && !busy[id] {
				state.RecordAchieved(s, want, g, state.Epoch(node), nil)
			}
		}
		if len(steps) == 0 {
			return nil
		}
		recordFound(s, steps)
		return recordChange(s, &record)
	})
	if err != nil {
		cs.Log.Error("cannot record the restore of layouts", "error", err)
		return false
	}
	cs.resets.note(node)
	if len(steps) > 0 {
		cs.Log.Info("layouts are restored", "message_id", report.MessageLayoutsRestored, "operation", record.ID, "steps", len(steps))
		cs.launch(record, api.Plan{SchemaVersion: 1, Generation: want.Generation, Steps: state.WireSteps(record.Steps)})
	}
	return true
}

// RetryGPU retries a held or unresponsive GPU, with the authority of the request.
func (cs *Changes) RetryGPU(c *server.Call) error {
	node, want := cs.Observer.Last(), cs.State.Desired()
	name, a := c.R.PathValue("id"), planner.Authority{Force: c.Flag("force"), AllowReset: c.Flag("allow-reset")}
	g, err := planner.GPUNamed(node, name)
	if err != nil && cs.State.RefuseMissing(node, name) == nil {
		return err
	}
	done, err := cs.lockChanges(c.Ctx())
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(c.Ctx(), observe.Timeout)
	defer cancel()
	if g == nil { // It was missing.
		cs.Observer.Invalidate()
		if node = cs.Observer.Observe(ctx); node.DriverErr != nil {
			return report.DriverError(node.DriverErr)
		}
		g, err = planner.GPUNamed(node, name)
		if err := cmp.Or(cs.State.RefuseMissing(node, name), err); err != nil {
			return err
		}
	}
	id := g.Identity.UUID
	if err := cs.Driver.Retry(ctx, id); err != nil {
		if gpu.IsAny(err, gpu.ErrNotFound) { // The driver was loaded again without it, which the last observation does not know.
			cs.Observer.Invalidate()
			return cmp.Or(cs.State.RefuseMissing(cs.Observer.Observe(ctx), name), error(report.DriverError(err)))
		}
		return report.DriverError(err)
	}
	node = cs.Observer.Observe(ctx)
	if err := cs.Health.Retry(ctx, id); err != nil {
		return err
	}
	p := &proposal{want: want, node: node, same: true, only: &id, command: "gpushare gpu retry " + name}
	if want.Spec != nil {
		if err := cs.planProposal(ctx, p, nil, a); err != nil {
			return err
		}
	}
	op, err := cs.accept(c.Ctx(), p, c.Caller.Name, a)
	if err != nil {
		return err
	}
	c.Note.Text = p.auditText(a)
	if op == nil {
		done := cs.Operations.Begin("retry-of-"+name, "retry", c.Caller.Name, p.plan)
		done = cs.Operations.End(done.ID, "done", nil)
		op = &done
	}
	return c.Reply(200, op)
}

// GetOperations lists the operations that run and the last that ended.
func (cs *Changes) GetOperations(c *server.Call) error {
	return c.Reply(200, api.OperationList{SchemaVersion: 1, Operations: cs.Operations.List()})
}

// GetOperation answers an operation. With wait= it waits for a newer version.
func (cs *Changes) GetOperation(c *server.Call) error {
	ctx, stop := c.WhileAllowed()
	defer stop()
	after := uint64(0)
	if w := c.Text("wait"); w != "" {
		var wait api.Duration
		if err := wait.UnmarshalText([]byte(w)); err != nil {
			return &api.Error{Kind: api.KindInvalid, Message: "cannot read wait: " + err.Error()}
		}
		var err error
		if after, err = strconv.ParseUint(c.Text("after"), 10, 64); err != nil {
			return &api.Error{Kind: api.KindInvalid, Message: "cannot read after: it must be a version"}
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(time.Duration(wait), time.Minute))
		defer cancel()
	}
	op, ok := cs.Operations.Get(ctx, c.R.PathValue("id"), after)
	if err := server.Lost(ctx); err != nil {
		return err
	}
	if !ok {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("there is no operation %q", c.R.PathValue("id")),
			Hint:    "'gpushare operation list' shows those that are kept: the running and the last ones, until the daemon is restarted",
		}
	}
	return c.Reply(200, op)
}
