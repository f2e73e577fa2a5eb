package change

import (
	"bytes"
	"context"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/specs"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/step"
)

// proposal is a planned change that is not accepted yet.
type proposal struct {
	yaml     string // as it is stored
	want     *state.Desired
	resolved spec.Resolved
	node     *observe.Node
	steps    []step.Step
	plan     api.Plan
	same     bool      // the spec in force is the same
	only     *gpu.UUID // a retry of one GPU: other GPUs stay unchanged
	unmanage string    // unmanage: how much is removed
	command  string    // with which the caller asks for it, without options

	awaitBoot map[gpu.UUID]bool // the GPUs that a boot of the host brings nearer to the spec: they have no step

	migrationByDefault bool // the spec does not say node.isolation.migration
}

func (p *proposal) concerns(id gpu.UUID) bool { return p.only == nil || *p.only == id }

// kindApply is the kind of change that puts a spec in force.
const kindApply = "apply"

func (p *proposal) kind() string {
	switch {
	case p.unmanage != "":
		return state.KindUnmanage
	case p.only != nil:
		return "retry"
	}
	return kindApply
}

// propose plans a spec, or returns the reason why it is not possible. It changes nothing.
func (cs *Changes) propose(ctx context.Context, d *spec.Document, match *uint64, a planner.Authority) (*proposal, error) {
	now, s := cs.State.Desired(), d.Spec
	if s.Base != nil && match == nil {
		match = s.Base
	}
	if match != nil && *match != now.Generation {
		return nil, specs.Stale(s, *match, cs.State.Stored().Accepted, cs.State.Stored().Revisions)
	}
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	cs.Identities.QueryNames(s, server.NameWait, true)
	node := cs.Observer.Observe(ctx)
	if node.DriverErr != nil && len(s.GPUs) > 0 {
		return nil, report.DriverError(node.DriverErr)
	}
	s.Base = nil
	text, err := spec.Encode(s)
	if err != nil {
		return nil, err
	}
	byDefault := s.Node.Isolation == nil || s.Node.Isolation.Migration == ""
	s.Normalize() // The document is stored as written, without defaults: defaults may change with a version.
	resolved, found, err := spec.Resolve(s, append(node.Identities(), node.Missing...))
	if err != nil {
		return nil, d.Located(err)
	}
	p := &proposal{
		command:            spec.Command(d.File),
		node:               node,
		resolved:           resolved,
		want:               state.DesiredOf(s, resolved, now.Generation+1),
		yaml:               string(text),
		migrationByDefault: byDefault,
	}
	p.same = now.Spec != nil && cs.State.Stored().Accepted != nil && cs.State.Stored().Accepted.YAML == p.yaml &&
		state.SameResolved(now, p.want)
	if p.same {
		p.want.Generation = now.Generation
	}
	if err := planner.FeasibleSpec(p.want, node); err != nil {
		return nil, d.Located(err)
	}
	targets := p.want.PowerTargets(node)
	if err := state.PowerError(targets, cs.Power.Plan(ctx, targets, true).Problems); err != nil {
		return nil, d.Located(err)
	}
	if err := cs.Memory.Refuse(p.want, node); err != nil {
		return nil, err
	}
	return p, cs.planProposal(ctx, p, found, a)
}

// planProposal plans the steps of a proposal and checks its authority.
func (cs *Changes) planProposal(ctx context.Context, p *proposal, found []api.FieldError, a planner.Authority) error {
	use := cs.Attribution.UsageUnder(p.want, cs.Attribution.OpenDevices(ctx, p.node.GPUs))
	use.Done = ctx.Done()
	hardware := planner.PlanGPUs(p.want, p.node, use, a)
	hardware.Steps = append(hardware.Steps, cs.Power.Plan(ctx, p.want.PowerTargets(p.node), false).Steps...)
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.only == nil {
		p.plan.Held = hardware.TakeUnanswered(p.want, p.node)
		p.awaitBoot = cs.State.AwaitingBoot(p.want, p.node)
		hardware.TakeAwaitingBoot(p.awaitBoot, p.want, p.node, use)
	}
	maps.DeleteFunc(hardware.Problems, func(id gpu.UUID, _ error) bool { return !p.concerns(id) })
	hardware.Steps = slices.DeleteFunc(hardware.Steps, func(s step.Step) bool { return !p.concerns(gpu.UUID(s.GPU)) })
	observing := !p.want.Enforcing() && p.only == nil // It changes nothing, so it needs no authority.
	err := planner.ProblemError(hardware.Problems, planner.Remedies{Node: p.node, Command: p.command, Had: a, Removes: cs.removesInstances})
	if err != nil && !observing {
		if what := cs.refusedResetHint(ctx, hardware.Problems, p.node); what != "" {
			err.Hint += "; " + what
		}
		err.InUseBy = planner.ConflictingUsers(hardware.Problems, p.node, use)
		return err
	}
	in := cs.Policy.NodeInput(p.want, p.node, hardware.Steps)
	nodeSteps, nodeErr := planner.PlanNodeSteps(p.want, p.node, in)
	if nodeErr != nil {
		return nodeErr
	}
	live := cs.Table.Live()
	removed, unsure := cs.removedUnder(ctx, p.want, live)
	stops := planner.PlanStops(p.want, p.node, live, hardware.Steps, removed)
	processStops := planner.PlanProcessStops(hardware.Steps, p.node, use)
	for _, s := range planner.PlanClosingStops(cs.State.Desired(), p.want, p.node, use) {
		if !slices.ContainsFunc(processStops, func(o step.Step) bool { return o.GPU == s.GPU && bytes.Equal(o.Args, s.Args) }) {
			processStops = append(processStops, s)
		}
	}
	steps := planner.WithoutHeld(slices.Concat(stops, nodeSteps.Before, processStops, hardware.Steps, nodeSteps.After), p.plan.Held)
	if !a.Force && p.only == nil {
		steps = planner.WithoutRestarts(steps, p.node)
	}
	if p.only != nil {
		// The isolation changes with the GPU: access to a removed instance is revoked before another instance takes its place.
		steps = slices.DeleteFunc(steps, func(s step.Step) bool { return s.GPU != "" && s.GPU != string(*p.only) })
	}
	quiesce, quiesceErr := cs.planQuiesce(ctx, p.want, use, steps)
	if quiesceErr != nil {
		return quiesceErr
	}
	// Leases get their grace period before units are stopped.
	steps = slices.Insert(steps, planner.CountLeading(steps, planner.KindLeaseStop), quiesce.Stop...)
	p.steps = planner.Number(append(steps, quiesce.Start...))
	if err := planner.Admit(p.steps, a); err != nil && !observing {
		return err
	}
	p.plan = api.Plan{
		SchemaVersion: 1,
		Generation:    p.want.Generation,
		Empty:         len(p.steps) == 0,
		Steps:         state.WireSteps(p.steps),
		Observe:       !p.want.Enforcing(),
		Held:          p.plan.Held,
		Unreachable:   planner.UnreadParts(p.node, in),
	}
	if observing {
		p.plan.Unreachable = append(p.plan.Unreachable, planner.UnreachableGPUs(hardware.Problems, p.node, cs.removesInstances)...)
	}
	if p.only == nil {
		p.plan.Unreachable = append(p.plan.Unreachable, cs.heldAfter(p, hardware.Problems)...)
	}
	cs.State.Estimate(p.node, &p.plan)
	if observing {
		p.plan.Warnings = planner.WouldRefuse(hardware.Problems, p.steps, a)
	}
	cs.warn(ctx, p, found, use)
	p.plan.Warnings = append(p.plan.Warnings, quiesce.Warnings...)
	p.plan.Warnings = append(p.plan.Warnings, planner.RemovalWarnings(p.want, live, removed)...)
	p.plan.Warnings = append(p.plan.Warnings, planner.UnsureWarnings(p.want, live, unsure)...)
	p.plan.Disturbs = planner.Disturbs(p.steps)
	return nil
}
