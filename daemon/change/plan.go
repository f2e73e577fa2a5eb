package change

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
)

// remarks are what the document of a spec is warned of.
type remarks struct {
	found     []string
	byDefault bool // the spec does not say node.isolation.migration
}

// planProposal plans the steps of a proposal and checks its authority. If that is refused the plan is whole nevertheless: it shows
// what would be done.
func (cs *Changes) planProposal(ctx context.Context, p *state.Proposal, said remarks, a planner.Authority) error {
	d := &draft{observing: !p.Want.Enforcing() && !p.Intent.OneGPU()}
	if err := cs.planGPUs(ctx, p, d, a); err != nil {
		return err
	}
	d.refused = cs.refuse(ctx, p, d, a)
	if err := cs.planNode(ctx, p, d); err != nil {
		return cmp.Or(d.refused, err)
	}
	if err := cs.order(ctx, p, d, a); err != nil {
		return cmp.Or(d.refused, err)
	}
	d.refused = cs.admit(p, d, a)
	cs.describe(ctx, p, d, said, a)
	return d.refused
}

// admit returns why the proposal is refused. It checks the authority for what the steps disturb, and for the leases that end or lose
// their enforcement.
func (cs *Changes) admit(p *state.Proposal, d *draft, a planner.Authority) error {
	now := cs.State.Desired()
	ends := planner.LeaseEnds(now, p.Want, d.live, p.Steps)
	err := d.refused
	if err == nil && !d.observing {
		err = planner.Admit(p.Steps, a)
	}
	if err == nil && !p.Intent.OneGPU() {
		err = planner.AdmitEnds(now, p.Want, ends, a, p.Command)
	}
	d.engines = planner.EnginesChanged(now, d.live, p.Steps, d.hardware.Problems)
	inTheWay := planner.EnginesRefused(now, d.live, ends, p.Steps, d.hardware.Problems)
	planner.NameEngines(err, ends, d.engines, inTheWay, cs.Settings.NodeName(), p.Command)
	if err == nil && p.Runs() {
		err = planner.AdmitEngines(d.engines, cs.Settings.NodeName(), p.Command, a)
	}
	return err
}

// draft is what the parts of a plan need of each other.
type draft struct {
	refused   error // why it is refused; nil: it is not
	observing bool  // it changes nothing, so it needs no authority
	use       planner.Usage
	hardware  planner.GPUPlan
	fabric    *planner.Fabric // of the GPUs that it resets; nil: not read
	held      []api.HeldGPU   // left as they are, because they do not answer
	input     planner.NodeInput
	node      planner.NodeSteps
	live      []lease.Lease
	removed   map[string]string // leases by id, with why their users have no right to them any more
	engines   []string          // whose jobs may have a GPU that it changes
	unsure    []int             // users about whom the directory did not answer
	quiesce   planner.QuiescePlan
}

// planGPUs plans the hardware: modes, instances, limits of power.
func (cs *Changes) planGPUs(ctx context.Context, p *state.Proposal, d *draft, a planner.Authority) error {
	d.use = cs.Attribution.UsageUnder(p.Want, cs.Attribution.OpenDevices(ctx, p.Node.GPUs))
	d.use.Done = ctx.Done()
	d.hardware = planner.PlanGPUs(p.Want, p.Node, d.use, a)
	d.hardware.PlanRefusedResets(p.Want, p.Node, d.use, a)
	d.hardware.Steps = append(d.hardware.Steps, cs.Power.Plan(ctx, p.Want.PowerTargets(p.Node), false).Steps...)
	if err := ctx.Err(); err != nil {
		return err
	}
	if !p.Intent.OneGPU() {
		d.held = d.hardware.TakeUnanswered(p.Want, p.Node)
		p.AwaitBoot = cs.State.AwaitingBoot(p.Want, p.Node)
		d.hardware.TakeAwaitingBoot(p.AwaitBoot, p.Want, p.Node, d.use)
	}
	maps.DeleteFunc(d.hardware.Problems, func(id gpu.UUID, _ error) bool { return !p.Concerns(id) })
	maps.DeleteFunc(d.hardware.Resets, func(id gpu.UUID, _ error) bool { return !p.Concerns(id) })
	d.hardware.Steps = slices.DeleteFunc(d.hardware.Steps, func(s step.Step) bool { return !p.Concerns(gpu.UUID(s.GPU)) })
	return nil
}

// refuse returns why GPUs cannot be changed as the spec says; nil: all can, or none is changed.
func (cs *Changes) refuse(ctx context.Context, p *state.Proposal, d *draft, a planner.Authority) error {
	if d.observing {
		return nil
	}
	problems := d.hardware.Problems
	remedies := planner.Remedies{Node: p.Node, Command: p.Command, Had: a, Removes: cs.State.RemovesInstances}
	err := planner.ProblemError(problems, remedies)
	if err == nil { // A permission is asked for where it is enough.
		problems = d.hardware.Resets
		err = planner.ResetError(problems, remedies)
	}
	if err == nil {
		return nil
	}
	if what := cs.refusedResetHint(ctx, d, p.Node); what != "" {
		err.Hint += "; " + what
	}
	err.InUseBy = planner.ConflictingUsers(problems, p.Node, d.use)
	return err
}

// planNode plans the isolation, and which leases end with the spec.
func (cs *Changes) planNode(ctx context.Context, p *state.Proposal, d *draft) (err error) {
	d.input = cs.Policy.NodeInput(p.Want, p.Node, d.hardware.Steps)
	if d.node, err = planner.PlanNodeSteps(p.Want, p.Node, d.input); err != nil {
		return err
	}
	d.live = cs.Table.LiveUnder(p.Want.Renames)
	d.removed, d.unsure = cs.removedUnder(ctx, p.Want, d.live)
	return nil
}
