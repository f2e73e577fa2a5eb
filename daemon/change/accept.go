package change

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// Accept stores the spec and the change record in one write, and starts the steps. Without steps, or on a node that only
// observes, it returns no operation.
func (cs *Changes) Accept(ctx context.Context, p *state.Proposal, caller string, a planner.Authority) (*api.Operation, error) {
	ctx, err := server.GoOn(ctx)
	if err != nil {
		return nil, err
	}
	record := engine.Record{
		Kind:       p.Intent.Kind(),
		By:         caller,
		Authority:  engine.Authority{Force: a.Force, AllowReset: a.AllowReset},
		Generation: p.Want.Generation,
		Started:    cs.Now(),
		Epoch:      state.Epoch(p.Node),
		Steps:      p.Steps,
	}
	// From here on no lease is promised what it would not have under this spec, and those that were since the plan are among the live ones.
	withdraw := func() {}
	if p.Intent.Accepts() {
		withdraw = cs.Table.Expect(p.Want.Generation, planner.ComingGrants(p.Want))
	}
	live := cs.Table.LiveUnder(p.Want.Renames) // Without the lock of the store, which comes after the table's.
	if p.Intent.Accepts() && p.Want.Enforcing() {
		if err := planner.AdmitPlaced(cs.State.Desired(), p.Want, live, a, p.Command); err != nil {
			withdraw()
			return nil, err
		}
	}
	err = cs.State.Store.Update(func(s *store.State) error { return cs.recordAccepted(s, p, &record, live) })
	if err != nil {
		withdraw()
		return nil, state.NotBegun("the spec was not accepted", "apply", cs.State.Store.Path(), err)
	}
	cs.Specs.Install(p.Want)
	if !p.Intent.Removes() {
		cs.Events.Publish(api.Event{Kind: "spec.accepted", Message: fmt.Sprintf("generation %d, by %s", p.Want.Generation, caller)})
	} else {
		cs.Events.Publish(api.Event{Kind: "node.unmanaged", Message: fmt.Sprintf("%s, by %s", p.Extent, caller)})
	}
	if !p.Runs() {
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
	op := cs.launch(record, p.Plan, nil)
	return &op, nil
}

// recordAccepted records the spec, what has it already, and the change.
func (cs *Changes) recordAccepted(s *store.State, p *state.Proposal, r *engine.Record, live []lease.Lease) error {
	if s.Accepted != nil && s.Accepted.Unmanaged == store.UnmanagedAll {
		state.ForgetRestored(s, p.Node) // The modes that they have now are those from before this spec.
	}
	switch {
	case !p.Intent.Accepts():
	case p.Intent.Removes():
		s.Unmanage(p.YAML, r.By, r.Started, store.Resolved(p.Resolved), p.Extent)
	default:
		s.Accept(p.YAML, r.By, r.Started, store.Resolved(p.Resolved))
		s.Accepted.Overuse = api.DefaultOveruse
		state.RecordRenames(s, p.Want)
	}
	run := p.Runs()
	s.Epoch = state.Epoch(p.Node)
	state.RecordIdentities(s, p.Node)
	s.ActiveRestrictions = s.ActiveRestrictions || p.Want.Enforcing() || run
	if p.Want.Enforcing() {
		cs.State.RecordSlices(s, p.Want, p.Node, live)
	}
	if !p.Intent.Removes() {
		recordFound(s, p.Steps)
	} else if !run {
		state.RecordUnmanaged(s, p.Want, p.Node, nil, p.Plan.Complete())
	}
	cs.recordAchievedGPUs(s, p)
	if !run {
		return nil
	}
	return recordChange(s, r)
}

// recordAchievedGPUs records the GPUs that are as desired already. No step changes them, so no step would record them.
func (cs *Changes) recordAchievedGPUs(s *store.State, p *state.Proposal) {
	if !p.Want.Enforcing() {
		return
	}
	busy := gpusOf(p.Steps)
	for i := range p.Node.GPUs {
		g := &p.Node.GPUs[i]
		if id := g.Identity.UUID; p.Want.Manages(id) && !busy[id] && !p.AwaitBoot[id] && g.Err == nil && p.Concerns(id) {
			state.RecordAchieved(s, p.Want, g, state.Epoch(p.Node), nil)
			cs.resets.noteOne(id)
		}
	}
	state.RecordLeft(s, p.Want)
	closing.Held.OpenIf(s, func(c *store.Closure) bool {
		g, ok := p.Node.GPU(c.GPU)
		return !p.Want.Manages(c.GPU) || !p.AwaitBoot[c.GPU] && !busy[c.GPU] && p.Concerns(c.GPU) && (!ok || g.Err == nil)
	})
	withoutMPS := func(c *store.Closure) bool { return !p.Want.HasMPS(c.GPU, c.Instance.Size > 0) }
	closing.Drained.OpenIf(s, withoutMPS)
	closing.HeldBack.OpenIf(s, withoutMPS)
	for id := range s.OriginalModes {
		if p.Want.Mode(id) == api.ModeExternal {
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

// Submit carries out steps that no spec asks for. It must be called in Exclusive.
func (cs *Changes) Submit(
	ctx context.Context, kind, caller string, node *observe.Node, plan api.Plan, steps []step.Step, a planner.Authority,
) (*api.Operation, error) {
	if _, err := server.GoOn(ctx); err != nil {
		return nil, err
	}
	op, err := cs.Begin(&engine.Record{
		Kind:       kind,
		By:         caller,
		Authority:  engine.Authority{Force: a.Force, AllowReset: a.AllowReset},
		Generation: plan.Generation,
		Started:    cs.Now(),
		Epoch:      state.Epoch(node),
		Steps:      steps,
	}, plan, nil, nil)
	if err != nil {
		return nil, state.NotBegun("the change was not begun", "try", cs.State.Store.Path(), err)
	}
	return op, nil
}

// Begin records a change, and in the same write what also records, and carries it out. It must be called in Exclusive or Briefly. open
// takes the place of a change that was marked as open while this one was planned; nil: there was none.
func (cs *Changes) Begin(r *engine.Record, plan api.Plan, open *state.OpenChange, also func(*store.State)) (*api.Operation, error) {
	err := cs.State.Store.Update(func(s *store.State) error {
		if also != nil {
			also(s)
		}
		return recordChange(s, r)
	})
	if err != nil {
		return nil, err
	}
	op := cs.launch(*r, plan, open)
	return &op, nil
}
