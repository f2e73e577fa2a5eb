package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// changeTimeout bounds a whole change.
const changeTimeout = 10 * time.Minute

// openChange is the change under way.
type openChange struct {
	operation string
	gpus      map[gpu.UUID]bool // that it touches: they admit no lease

	brief   bool              // it only makes and takes away instances on demand: others wait for it
	ended   chan struct{}     // closed when it is over; nil where nobody waits
	makings []lease.Making    // that requests wait for
	failed  map[gpu.UUID]bool // GPUs on which it could not even be planned
	took    []tookStep        // its steps so far; only its own progress touches it
}

// accept persists the spec together with the change record, in one write, and starts the steps. Without steps, or on a
// node that only observes, there is no operation.
func (d *Changes) accept(ctx context.Context, p *proposal, who string, a authority) (*api.Operation, error) {
	now := d.Now()
	run := (p.want.enforcing() || p.released != "") && len(p.steps) > 0
	record := engine.Record{
		Kind: p.kind(), Who: who, Authority: engine.Authority(a), Generation: p.want.generation, Started: now, Epoch: epoch(p.node), Steps: p.steps,
	}
	err := d.state.Store.Update(func(s *store.State) error {
		switch {
		case p.same:
		case p.released != "":
			s.Release(p.yaml, who, now, store.Resolved(p.resolved), p.released)
		default:
			s.Accept(p.yaml, who, now, store.Resolved(p.resolved))
		}
		s.Epoch = epoch(p.node)
		s.Standing = s.Standing || p.want.enforcing() || run
		if p.want.enforcing() {
			d.state.noteMade(s, p.want, p.node)
		}
		if p.released == "" {
			noteFound(s, p.steps)
		} else if !run {
			noteReleased(s, p.want, p.node, nil, true)
		}
		d.noteAchieved(s, p)
		if !run {
			return nil
		}
		return recordChange(s, &record)
	})
	if err != nil {
		return nil, &api.Error{Kind: api.KindUnavailable, Message: "the spec was not accepted: " + err.Error(), Hint: "nothing was changed; make room in " + d.settings.StateDir + " and apply again"}
	}
	d.audit(who, p.kind(), fmt.Sprintf("generation %d, %d steps, force=%v", p.want.generation, len(p.steps), a.Force))
	d.install(p.want)
	if p.released == "" {
		d.Events.publish(api.Event{Kind: "spec.accepted", Message: fmt.Sprintf("generation %d, by %s", p.want.generation, who)})
	} else {
		d.Events.publish(api.Event{Kind: "node.released", Message: fmt.Sprintf("%s, by %s", p.released, who)})
	}
	if !run {
		// What is ours now, or held no longer, is open when this is answered. What walls were worked out to be did not know of it.
		d.policy.walls.Store(nil)
		if err := d.converger.mend(ctx); err != nil && ctx.Err() == nil {
			d.Log.Warn("cannot converge", "error", err)
		}
		d.converger.refresh(ctx, d.observer.Last())
		d.kick() // What else follows from it.
		return nil, nil
	}
	op := d.launch(record, p.plan)
	return &op, nil
}

// noteAchieved records GPUs that already are as wanted: nothing will be done on them, so nobody else would.
func (d *Changes) noteAchieved(s *store.State, p *proposal) {
	if !p.want.enforcing() {
		return
	}
	busy := gpusOf(p.steps)
	for i := range p.node.GPUs {
		g := &p.node.GPUs[i]
		if id := g.Identity.UUID; p.want.manages(id) && !busy[id] && g.Err == nil && p.about(id) {
			reached(s, p.want, g, epoch(p.node), nil)
		}
	}
	for id := range s.Achieved {
		if !p.want.manages(id) {
			delete(s.Achieved, id)
		}
	}
	for id := range s.Held {
		if !p.want.manages(id) || !busy[id] && p.about(id) {
			delete(s.Held, id)
		}
	}
	for id := range s.Found {
		if p.want.mode(id) == api.ModeExternal {
			delete(s.Found, id) // What becomes of its modes is its owner's business from now on.
		}
	}
}

// reached records what a GPU was read back as after these steps.
func reached(s *store.State, want *desired, g *observe.GPU, e store.Epoch, steps []step.Step) {
	id := g.Identity.UUID
	if s.Achieved == nil {
		s.Achieved = map[gpu.UUID]store.Achieved{}
	}
	was := s.Achieved[id]
	now := store.Achieved{Generation: want.generation, Epoch: e, MIG: g.MIG.Current}
	now.Layout, now.Marks = ownLayout(s, want.gpus[id], g, &was, e, steps)
	s.Achieved[id] = now
	delete(s.Held, id)
}

// reachedUnseen records a GPU whose steps were all read back as done, and that does not answer at the end. What was made
// on it is ours all the same: without the record it would be called somebody else's when the GPU answers again.
func (d *Changes) reachedUnseen(s *store.State, want *desired, g *observe.GPU, steps []step.Step, e store.Epoch) {
	id := g.Identity.UUID
	was := s.Achieved[id]
	own := slices.DeleteFunc(slices.Clone(steps), func(st step.Step) bool { return st.GPU != string(id) })
	on, layout, err := mig.After(was.MIG, was.Layout, own)
	if err != nil {
		d.Log.Error("cannot record what a GPU was made", "gpu", id, "error", err)
		return
	}
	seen := observe.GPU{Snapshot: gpu.Snapshot{Identity: g.Identity, Instances: layout, MIG: gpu.MIGState{Current: on}}}
	reached(s, want, &seen, e, own)
}

// recordChange numbers a change and puts its record into the state.
func recordChange(s *store.State, r *engine.Record) error {
	s.Operations++
	r.ID = fmt.Sprintf("%s-%d", r.Kind, s.Operations)
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("internal error: the change record does not encode: %w", err)
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

// launch carries a recorded change out in the background.
func (d *Changes) launch(r engine.Record, plan api.Plan) api.Operation {
	op := d.Operations.begin(r.ID, r.Kind, r.Who, plan)
	d.open(op.ID, &r)
	d.table.Update(view(d.state, d.observer.Last()))
	d.touch()
	d.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(d.tasks.Context(), changeTimeout)
		defer cancel()
		d.carryOut(ctx, r, op.ID, false)
	})
	return op
}

// open marks a change as under way, when no mending is.
func (d *Changes) open(operation string, r *engine.Record) {
	ch := &openChange{operation: operation, gpus: gpusOf(r.Steps)}
	switch r.Kind {
	case kindRelease:
		ch.gpus = everyGPU(d.observer.Last()) // Nobody comes in while all go out.
	case kindDynamic: // Of an earlier life: who waited for its instances comes again.
		ch.brief, ch.ended = true, make(chan struct{})
	}
	d.state.SetChanging(ch)
}

// carryOut runs the steps, reads back, records what was reached, and closes the change.
func (d *Changes) carryOut(ctx context.Context, r engine.Record, operation string, resumed bool) {
	ch := d.state.Changing()
	hooks := engine.Hooks{Progress: func(p engine.Progress) { ch.noteTook(&p); d.progress(operation, p) }, Widen: d.policy.widener()}
	var out engine.Outcome
	if resumed {
		out = d.engine.Resume(ctx, &r, epoch(d.observer.Last()), hooks)
	} else {
		out = d.engine.Run(ctx, &r, hooks)
	}
	if out.State() == engine.Interrupted {
		d.wakeUnits(ctx, &r)
		why := "the daemon was stopped in the middle"
		if d.tasks.Context().Err() == nil {
			why = fmt.Sprintf("it took longer than %s", changeTimeout)
		}
		d.Operations.end(operation, "failed", &api.Error{Kind: api.KindUnavailable, Message: "the change is not finished: " + why, Hint: "it goes on when the daemon is started again"})
		return // The record stays open, and the next life settles it.
	}
	d.closeChange(ctx, r, operation, out)
}

func (d *Changes) progress(operation string, p engine.Progress) {
	if p.State == engine.Done && !p.Skipped {
		d.Counters.steps.Add(1)
	}
	d.Operations.update(operation, func(op *api.Operation) {
		for i := range op.Plan.Steps {
			if s := &op.Plan.Steps[i]; s.ID == p.Step {
				s.State, s.Seconds = string(p.State), p.Took.Seconds()
				if p.Err != nil {
					s.Error = p.Err.Error()
				}
			}
		}
	})
}

// closeChange reads back and makes the outcome known.
func (d *Changes) closeChange(ctx context.Context, r engine.Record, operation string, out engine.Outcome) {
	want := d.state.Desired()
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), observe.Timeout)
	defer cancel()
	d.observer.Forget() // A mode change moves minors and what can be partitioned.
	node := d.observer.Observe(look)
	d.state.SetSettledAt(node.Seq)
	d.policy.unseen.note(node, r.Steps)
	failed := failures(out)
	touched := gpusOf(r.Steps)
	stopped := d.stoppedUnits(look, &r)
	empty := r.Kind == kindRelease && out.State() == engine.Reached && d.nothingStands(node, want)
	err := d.state.Store.Finish(func(s *store.State) error {
		s.Change = nil
		noteTimes(s, node, r.Steps, d.state.Changing().took)
		for _, unit := range stopped {
			if !slices.Contains(s.Stopped, unit) {
				s.Stopped = append(s.Stopped, unit)
			}
		}
		for id := range touched {
			g, ok := node.GPU(id)
			why, bad := failed[id]
			switch {
			case bad:
				if s.Held == nil {
					s.Held = map[gpu.UUID]store.Held{}
				}
				s.Held[id] = store.Held{Generation: want.generation, Reason: why, Since: d.Now()}
			case out[string(id)].Dropped > 0:
				// A boot took away what its steps were about. What was achieved before stays on record, of an epoch that is
				// over: the converge loop plans the GPU anew.
			case !ok || !want.manages(id):
			case g.Err == nil:
				reached(s, want, g, epoch(node), r.Steps)
			default:
				d.reachedUnseen(s, want, g, r.Steps, epoch(node))
			}
		}
		if r.Kind == kindRelease {
			noteReleased(s, want, node, failed, empty)
		}
		return nil
	})
	if err != nil {
		d.Conditions.set("state", "close", "the end of a change could not be recorded: "+err.Error(), "make room in "+d.settings.StateDir+"; the change is settled again at the next start")
		d.Log.Error("cannot record the end of a change", "operation", operation, "error", err)
	} else {
		d.Conditions.clear("state", "close")
	}
	// The soft part of what the hardware now allows: access is granted from what is observed.
	soft := d.converger.converge(context.WithoutCancel(ctx))
	ch := d.state.EndChange()
	d.converger.refresh(context.WithoutCancel(ctx), d.observer.Last()) // Before the end is told: whoever waited for it looks at the status next.
	d.endMakings(ch, failed)
	d.endOperation(operation, node, failed, out, soft)
}

// endMakings tells those who waited for instances how it ended, and looks for what is to be made or taken away next.
func (d *Changes) endMakings(ch *openChange, failed map[gpu.UUID]string) {
	if ch != nil && len(ch.makings) > 0 {
		bad := maps.Clone(ch.failed)
		for id := range failed {
			bad[id] = true
		}
		d.table.EndMakings(ch.makings, bad)
	}
	if ch != nil && ch.ended != nil {
		close(ch.ended)
	}
	d.dynamic.poke()
}

// failures gives the GPUs that were not reached, and why.
func failures(out engine.Outcome) map[gpu.UUID]string {
	failed := map[gpu.UUID]string{}
	for id, l := range out {
		if id != "" && l.State != engine.Reached {
			failed[gpu.UUID(id)] = l.Reason
		}
	}
	return failed
}

func (d *Changes) endOperation(operation string, node *observe.Node, failed map[gpu.UUID]string, out engine.Outcome, soft error) {
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(failed)) {
		name := string(id)
		if g, ok := node.GPU(id); ok {
			name = fmt.Sprintf("GPU %d", g.Identity.Index)
		}
		parts = append(parts, name+" is held: "+failed[id])
		d.Events.publish(api.Event{Kind: "gpu.held", GPU: string(id), Message: failed[id]})
	}
	for _, id := range slices.Sorted(maps.Keys(out)) {
		if l := out[id]; id != "" && l.State == engine.Reached && l.Dropped > 0 {
			parts = append(parts, id+" was booted or reloaded in between: what it lost is made again now")
			d.kick()
		}
	}
	if l := out[""]; l.Reason != "" {
		parts = append(parts, l.Reason)
	}
	if soft != nil {
		parts = append(parts, soft.Error())
	}
	if len(parts) == 0 {
		d.Operations.end(operation, "done", nil)
		d.Events.publish(api.Event{Kind: "change.done", Message: operation + " is done"})
		return
	}
	message := strings.Join(parts, "; ")
	d.Operations.end(operation, "degraded", &api.Error{
		Kind: api.KindDegraded, Message: "not all was reached: " + message, Hint: "what failed was undone; correct the cause, then 'gpushare gpu retry GPU' or apply again",
	})
	d.Events.publish(api.Event{Kind: "change.degraded", Message: operation + ": " + message})
	d.Log.Warn("a change ended degraded", "operation", operation, "why", message)
}

// settle resumes the change that an earlier life left open, with the authority it was given, or restores what a boot or
// a reload of the driver took away.
func (d *Changes) settle(ctx context.Context) {
	raw := d.state.Kept().Change
	if len(raw) == 0 {
		return
	}
	var r engine.Record
	if err := json.Unmarshal(raw, &r); err != nil {
		d.Conditions.set("state", "change", "the open change cannot be read: "+err.Error(), "the node is taken as it is; apply the spec again")
		return
	}
	d.Log.Info("an open change is settled", "operation", r.ID, "who", r.Who, "steps", len(r.Steps))
	op := d.Operations.begin(r.ID, "resume", r.Who, api.Plan{SchemaVersion: 1, Generation: d.state.Desired().generation, Steps: wireSteps(r.Steps)})
	d.open(op.ID, &r)
	d.tasks.Go(func() {
		run, cancel := context.WithTimeout(d.tasks.Context(), changeTimeout)
		defer cancel()
		d.carryOut(run, r, op.ID, true)
	})
}

// restore makes layouts be again what they were before a boot, a reload of the driver or a reset, at the same placements.
func (d *Changes) restore(node *observe.Node) {
	want, st := d.state.Desired(), d.state.Kept()
	if !want.enforcing() || node.DriverErr != nil || d.state.Changing() != nil {
		return
	}
	lost := map[gpu.UUID]bool{}
	for id := range want.gpus {
		if _, held := st.Held[id]; held || !want.manages(id) {
			continue
		}
		a, ok := st.Achieved[id]
		if !ok || epochOver(a.Epoch, node) || d.sight.wiped(&a, node, id) {
			lost[id] = true
		}
	}
	if len(lost) == 0 {
		d.sight.note(node)
		return
	}
	if !d.applyMu.TryLock() {
		return
	}
	defer d.applyMu.Unlock()
	ctx, cancel := context.WithTimeout(d.tasks.Context(), observe.Timeout)
	defer cancel()
	steps, problems := d.planRestore(ctx, want, node, lost)
	record := engine.Record{Kind: "restore", Who: "gpushared", Generation: want.generation, Started: d.Now(), Epoch: epoch(node), Steps: number(steps)}
	err := d.state.Store.Update(func(s *store.State) error {
		s.Epoch = epoch(node)
		busy := gpusOf(steps)
		for id := range lost {
			g, ok := node.GPU(id)
			if why, bad := problems[id]; bad {
				if s.Held == nil {
					s.Held = map[gpu.UUID]store.Held{}
				}
				s.Held[id] = store.Held{Generation: want.generation, Reason: why.Error(), Since: d.Now()}
			} else if ok && g.Err == nil && !busy[id] {
				reached(s, want, g, epoch(node), nil)
			}
		}
		if len(steps) == 0 {
			return nil
		}
		noteFound(s, steps)
		return recordChange(s, &record)
	})
	if err != nil {
		d.Log.Error("cannot record the restoring of layouts", "error", err)
		return
	}
	d.sight.note(node)
	if len(steps) > 0 {
		d.Log.Info("layouts are restored", "operation", record.ID, "steps", len(steps))
		d.launch(record, api.Plan{SchemaVersion: 1, Generation: want.generation, Steps: wireSteps(record.Steps)})
	}
}

// retryGPU tries a held or stuck GPU again.
func (d *Changes) retryGPU(c *call) error {
	node, want := d.observer.Last(), d.state.Desired()
	name := c.r.PathValue("id")
	i := slices.IndexFunc(node.GPUs, func(g observe.GPU) bool {
		return string(g.Identity.UUID) == name || fmt.Sprint(g.Identity.Index) == name
	})
	if i < 0 {
		return &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("there is no GPU %q", name), Hint: "'gpushare gpu list' shows them"}
	}
	done, err := d.takeTurn(c.ctx())
	if err != nil {
		return err
	}
	defer done()
	id := node.GPUs[i].Identity.UUID
	ctx, cancel := context.WithTimeout(c.ctx(), observe.Timeout)
	defer cancel()
	if err := d.driver.Retry(ctx, id); err != nil {
		return driverError(err)
	}
	node = d.observer.Observe(ctx)
	p := &proposal{want: want, node: node, same: true, only: &id}
	if want.spec != nil {
		if err := d.planProposal(ctx, p, nil, authority{}); err != nil {
			return err
		}
	}
	op, err := d.accept(c.ctx(), p, c.caller.name, authority{})
	if err != nil {
		return err
	}
	if op == nil {
		done := d.Operations.begin("retry-of-"+name, "retry", c.caller.name, p.plan)
		done = d.Operations.end(done.ID, "done", nil)
		op = &done
	}
	return c.reply(200, op)
}

func (d *Changes) getOperation(c *call) error {
	q := c.r.URL.Query()
	ctx, after := c.ctx(), uint64(0)
	if w := q.Get("wait"); w != "" {
		var wait api.Duration
		if err := wait.UnmarshalText([]byte(w)); err != nil {
			return &api.Error{Kind: api.KindInvalid, Message: "cannot read wait: " + err.Error()}
		}
		if _, err := fmt.Sscan(q.Get("after"), &after); err != nil {
			return &api.Error{Kind: api.KindInvalid, Message: "cannot read after: it must be a version"}
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(time.Duration(wait), time.Minute))
		defer cancel()
	}
	op, ok := d.Operations.get(ctx, c.r.PathValue("id"), after)
	if !ok {
		return &api.Error{Kind: api.KindNotFound, Message: fmt.Sprintf("there is no operation %q", c.r.PathValue("id")), Hint: "operations are remembered until the daemon is restarted"}
	}
	return c.reply(200, op)
}
