package change

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/outcome"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/specs"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
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

// PutSpec is apply: decode, resolve, observe, plan, admit, persist, and then the steps.
func (cs *Changes) PutSpec(c *server.Call) error {
	body, err := c.Body()
	if err != nil {
		return err
	}
	a := planner.Authority{Force: c.Flag("force"), AllowReset: c.Flag("allow-reset")}
	check, file := c.Flag("check"), c.Text("file")
	if file == "" || file == "-" {
		file = "the spec"
	}
	match, err := ifMatch(c.R.Header.Get("If-Match"))
	if err != nil {
		return err
	}
	s, err := spec.Decode(file, body)
	if err != nil {
		return err
	}
	d, err := cs.Specs.OnlyFromFile(spec.NewDocument(file, body, s), check)
	if err != nil {
		return err
	}
	if !check {
		done, err := cs.lockChanges(c.Ctx())
		if err != nil {
			return err
		}
		defer done()
	}
	p, err := cs.propose(c.Ctx(), d, match, a)
	if err != nil {
		return err
	}
	if c.Flag("diff") {
		p.plan.Diff = cs.Specs.Diff(p.yaml)
	}
	out := api.ApplyResult{Generation: p.want.Generation, Plan: p.plan, Checked: check, Changed: !p.same || !p.plan.Empty}
	if check || (p.same && p.plan.Empty) {
		c.Note.Text = "no changes"
		return c.Reply(http.StatusOK, out)
	}
	op, err := cs.accept(c.Ctx(), p, c.Caller.Name, a)
	if err != nil {
		return err
	}
	c.Note.Text = p.auditText(a)
	out.Operation = op
	status := http.StatusOK
	if op != nil {
		status = http.StatusAccepted
	}
	return c.Reply(status, out)
}

// ApplyDocument applies a spec without any option, if it says something else than the one in force.
func (cs *Changes) ApplyDocument(ctx context.Context, d *spec.Document, by string) (*api.ApplyResult, error) {
	done, err := cs.lockChanges(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	p, err := cs.propose(ctx, d, nil, planner.Authority{})
	if err != nil {
		return nil, err
	}
	out := &api.ApplyResult{Generation: p.want.Generation, Plan: p.plan, Changed: !p.same}
	if p.same {
		return out, nil
	}
	if out.Operation, err = cs.accept(ctx, p, by, planner.Authority{}); err == nil {
		cs.Audit(by, p.kind(), p.auditText(planner.Authority{}))
	}
	return out, err
}

func ifMatch(header string) (*uint64, error) {
	if header == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(strings.Trim(header, `"`), 10, 64)
	if err != nil {
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot read If-Match: it must be a generation"}
	}
	return &n, nil
}

func (cs *Changes) conflict() error {
	e := &api.Error{Kind: api.KindConflict, Message: "another change is under way", Hint: "wait for it and try again"}
	ch := cs.State.Changing()
	e.Planning = ch == nil
	if ch != nil {
		e.Operation = ch.Operation
		e.Message += ": " + ch.Operation
		if cs.Operations.Has(ch.Operation) { // It has no operation while it is planned.
			e.Hint = fmt.Sprintf(
				"'gpushare operation wait %s' waits for it: then try again; 'gpushare apply --wait' does both", ch.Operation,
			)
		}
	}
	return e
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
		p.plan.Warnings = outcome.WouldRefuse(hardware.Problems, p.steps, a)
	}
	cs.warn(ctx, p, found, use)
	p.plan.Warnings = append(p.plan.Warnings, quiesce.Warnings...)
	p.plan.Warnings = append(p.plan.Warnings, planner.RemovalWarnings(p.want, live, removed)...)
	p.plan.Warnings = append(p.plan.Warnings, planner.UnsureWarnings(p.want, live, unsure)...)
	p.plan.Disturbs = planner.Disturbs(p.steps)
	return nil
}

// warn adds what the plan of a proposal warns of, besides what its steps stop.
func (cs *Changes) warn(ctx context.Context, p *proposal, found []api.FieldError, use planner.Usage) {
	for _, w := range found {
		p.plan.Warnings = append(p.plan.Warnings, w.Error())
	}
	for _, over := range cs.Table.OversubscribedUnder(planner.ProposedView(p.want, p.node)) {
		p.plan.Warnings = append(p.plan.Warnings, over.Text())
	}
	if planner.WantsMPS(p.want) && cs.Observer.MPS != nil {
		p.plan.Warnings = append(p.plan.Warnings, planner.MPSWarnings(p.want, p.node, cs.Observer.MPS.Program(ctx))...)
	}
	if p.migrationByDefault && planner.DeniesMigration(p.steps) {
		p.plan.Warnings = append(
			p.plan.Warnings,
			"node.isolation.migration is deny by default: "+state.MigrationCost+". With 'detect' they can, and processes that leave their lease are killed",
		)
	}
	p.plan.Warnings = slices.Concat(
		p.plan.Warnings, planner.IrreversibleWarnings(p.steps, p.node), planner.AwaitBootWarnings(p.awaitBoot, p.node),
	)
	p.plan.Warnings = slices.Concat(p.plan.Warnings, cs.resetWarnings(ctx, p.steps, p.node, use))
	unknown := server.TableOf(0, p.want.Spec, cs.Identities.Names).Unknown
	for i := range unknown {
		p.plan.Warnings = append(p.plan.Warnings, unknown[i].Text())
	}
}

// removedUnder returns the leases whose users are members of their tenant no more under a spec, by id, with why. What was so before
// is not among them: it goes on, or the daemon stops it outside of the change. unsure are the users about whom the directory did not
// answer.
func (cs *Changes) removedUnder(ctx context.Context, want *state.Desired, live []lease.Lease) (out map[string]string, unsure []int) {
	now, out := cs.State.Desired(), map[string]string{}
	var users []int
	for i := range live {
		if uid, has := live[i].RightOf(); has && !slices.Contains(users, uid) {
			users = append(users, uid)
		}
	}
	unsure = cs.Identities.ConfirmUsers(ctx, users)
	table := server.TableOf(cs.Identities.Table.Load().Self, want.Spec, cs.Identities.Names)
	for i := range live {
		l := &live[i]
		uid, has := l.RightOf()
		if !has {
			continue
		}
		why, _ := cs.Identities.RemovedUnder(table, uid, l.Terms.Tenant)
		if why == "" {
			continue
		}
		before, _ := cs.Identities.Removed(uid, l.Terms.Tenant)
		if before != "" && now.StopsOnRemoval(l.Terms.Tenant) == want.StopsOnRemoval(l.Terms.Tenant) {
			continue
		}
		out[l.ID] = why
	}
	return out, unsure
}
