package unmanage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
)

// remainder is the steps that remove what gpushare maintains on the node.
type remainder struct {
	steps    []step.Step
	warnings []string          // what stays, and why
	unread   []api.Unreachable // what could not be read: it is not known whether it is left
}

// remaining returns the steps that are left to unmanage the node. It needs no spec: it reads what is active.
func (u *Unmanaging) remaining(node *observe.Node, extent string) (remainder, error) {
	var out remainder
	if node.SlicesErr != nil {
		return out, fmt.Errorf("cannot read the slices: %w", node.SlicesErr)
	}
	if node.LoginFiltersErr != nil {
		out.unread = planner.UnreadParts(node, planner.NodeInput{})
	}
	live := u.Table.Live()
	var hardware []step.Step
	if extent == store.UnmanagedAll {
		found, uses := u.State.Stored().OriginalModes, u.Attribution.Usage()
		for i := range node.GPUs {
			steps, warnings := planner.PlanUnmanageGPU(&node.GPUs[i], found[node.GPUs[i].Identity.UUID], uses)
			hardware = append(hardware, steps...)
			out.warnings = append(out.warnings, warnings...)
		}
	}
	managed, others := u.State.ManagedSlices(node, nil)
	for i := range others {
		out.warnings = append(out.warnings, fmt.Sprintf("the slice of %s is not managed by gpushare: it stays", others[i].Name))
	}
	stop, _ := planner.PlanMPS(&state.Desired{}, node, nil, nil)
	var names []cgroup.SliceState
	if !u.Port.Info().Slices {
		if !u.State.Desired().Enforcing() {
			managed = nil // Without enforcement the slices are only names: they restrict no process.
		}
		names = managed
	}
	bus, err := planner.PlanMigrationUnmanage(u.Policy.NodeInput(&state.Desired{}, node, nil).MigrationDenied)
	if err != nil {
		return out, err
	}
	isolationSteps := slices.Concat(
		isolation.PlanUnmanage(managed, u.Port.Info(), u.Attribution.SliceUse(node)),
		isolation.PlanLoginFilters(nil, node.LoginFilters, u.Logins.Logins), bus,
	)
	rest, warnings, err := u.planRest()
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(u.Tasks.Context(), observe.Timeout)
	defer cancel()
	power, unread := u.Power.PlanUnmanage(ctx, (&state.Desired{}).PowerTargets(node))
	out.warnings = slices.Concat(out.warnings, warnings, unread)
	out.steps = slices.Concat(planner.PlanUnmanageStops(live, names, hardware, extent), isolationSteps, rest, stop, hardware, power)
	return out, nil
}

// RemainingSteps returns how many steps are left to unmanage the node, and the first of them.
func (u *Unmanaging) RemainingSteps(node *observe.Node) (n int, first string, err error) {
	l, err := u.remaining(node, store.UnmanagedRestrictions)
	if err == nil && len(l.unread) > 0 {
		err = errors.New(l.unread[0].Reason)
	}
	if err != nil || len(l.steps) == 0 {
		return 0, "", err
	}
	return len(l.steps), l.steps[0].Text, nil
}

// NothingRemains reports whether the node is unmanaged completely.
func (u *Unmanaging) NothingRemains(node *observe.Node, want *state.Desired) bool {
	extent := store.UnmanagedRestrictions
	if want.Unmanaged != nil && want.Unmanaged.All {
		extent = store.UnmanagedAll
	}
	l, err := u.remaining(node, extent)
	return err == nil && len(l.steps)+len(l.unread) == 0
}
