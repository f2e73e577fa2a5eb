package change

import (
	"context"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/lease"
)

// describe writes the plan of a proposal: its steps, what it does not reach, and what it warns of.
func (cs *Changes) describe(ctx context.Context, p *state.Proposal, d *draft, said remarks, a planner.Authority) {
	p.Plan = api.Plan{
		SchemaVersion: 1,
		Generation:    p.Want.Generation,
		Empty:         len(p.Steps) == 0,
		Steps:         state.WireSteps(p.Steps),
		Observe:       !p.Want.Enforcing(),
		Held:          d.held,
		Unreachable:   planner.UnreadParts(p.Node, d.input),
	}
	if d.observing || d.refused != nil {
		p.Plan.Unreachable = append(p.Plan.Unreachable, planner.UnreachableGPUs(d.hardware.Problems, p.Node, cs.State.RemovesInstances)...)
	}
	if !p.Intent.OneGPU() && d.refused == nil {
		p.Plan.Unreachable = append(p.Plan.Unreachable, cs.heldAfter(p, d.hardware.Problems)...)
	}
	if p.Intent.Accepts() {
		p.Plan.Renames = planner.Renames(p.Want.Renames.In(p.Want.Generation), d.live, cs.Table.List())
	}
	cs.State.Estimate(p.Node, &p.Plan)
	if d.observing {
		p.Plan.Warnings = planner.WouldRefuse(&d.hardware, p.Steps, a)
	}
	if warning := planner.DisarmingWarning(cs.State.Desired(), p.Want); warning != "" {
		p.Plan.Warnings = append(p.Plan.Warnings, warning)
	}
	p.Plan.Warnings = append(p.Plan.Warnings, said.found...)
	p.Plan.Warnings = append(p.Plan.Warnings, cs.warnings(ctx, p, d, said.byDefault)...)
	p.Plan.Warnings = append(p.Plan.Warnings, d.quiesce.Warnings...)
	p.Plan.Warnings = append(p.Plan.Warnings, planner.RemovalWarnings(p.Want, d.live, d.removed)...)
	p.Plan.Warnings = append(p.Plan.Warnings, planner.UnsureWarnings(p.Want, d.live, d.unsure)...)
	p.Plan.Warnings = append(p.Plan.Warnings, planner.EngineWarnings(p.Want, p.Node, d.live)...)
	p.Plan.Disturbs = planner.Disturbs(p.Steps)
	p.Plan.Engines = d.engines
}

// warnings returns what the plan of a proposal warns of, besides what its steps stop.
func (cs *Changes) warnings(ctx context.Context, p *state.Proposal, d *draft, migrationByDefault bool) (out []string) {
	out = planner.OversubscribedWarnings(p.Want, p.Node)
	for _, over := range cs.Table.OversubscribedUnder(planner.ProposedView(p.Want, p.Node)) {
		out = append(out, over.Text())
	}
	if planner.WantsMPS(p.Want) && cs.Observer.MPS != nil {
		out = append(out, planner.MPSWarnings(p.Want, p.Node, cs.Observer.MPS.Program(ctx))...)
	}
	if migrationByDefault && planner.DeniesMigration(p.Steps) {
		out = append(out, "node.isolation.migration is deny by default: "+state.MigrationCost+
			". With 'detect' they can, and processes that leave their lease are killed")
	}
	out = slices.Concat(
		out, planner.IrreversibleWarnings(p.Steps, p.Node), planner.AwaitBootWarnings(p.AwaitBoot, p.Node),
		cs.resetWarnings(ctx, d, p.Steps, p.Node),
	)
	unknown := server.TableOf(0, p.Want.Spec, cs.Identities.Names).Unknown
	for i := range unknown {
		out = append(out, unknown[i].Text())
	}
	return out
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
