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
