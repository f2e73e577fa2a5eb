package isolation

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/internal/step"
)

// KindLoginFilter is the kind of step that sets or takes off the guard of a cgroup. Arguments and undo: LoginFilterArgs.
const KindLoginFilter = "login-filter.set"

// LoginFilterArgs is the guard that a cgroup should have; nil is none.
type LoginFilterArgs struct {
	Cgroup string              `json:"cgroup"`
	Filter *device.LoginFilter `json:"filter,omitempty"`
}

// PlanLoginFilters is the steps from the guards as read back to those that should stand. One that changes both ways has two
// steps, as slices have: first it closes and takes exceptions away, and when the hardware has changed it opens.
func PlanLoginFilters(desired, observed []device.LoginFilterState, logins string) []step.Step {
	var revoke, grant []step.Step
	for _, want := range desired {
		i := slices.IndexFunc(observed, func(s device.LoginFilterState) bool { return s.Cgroup == want.Cgroup })
		target := filterTarget(want.Cgroup, logins)
		if i < 0 {
			revoke = append(revoke, step.Step{
				Kind: KindLoginFilter, Phase: step.RevokeAccess, Disruption: step.None,
				Args: step.Must(LoginFilterArgs{want.Cgroup, &want.Filter}), Undo: step.Must(LoginFilterArgs{Cgroup: want.Cgroup}),
				Text: fmt.Sprintf("close %s to %s%s", gpuText(want.Filter), target, exceptionText(want.Filter)), Reason: "nothing keeps it from managed GPUs; what is open already stays open",
			})
			continue
		}
		is := observed[i].Filter
		restricted := restrictFilter(is, want.Filter)
		if !restricted.Equal(is) {
			revoke = append(revoke, step.Step{
				Kind: KindLoginFilter, Phase: step.RevokeAccess, Disruption: step.None,
				Args: step.Must(LoginFilterArgs{want.Cgroup, &restricted}), Undo: step.Must(LoginFilterArgs{want.Cgroup, &is}),
				Text: fmt.Sprintf("close %s to %s%s", gpuText(restricted), target, exceptionText(restricted)), Reason: "it allows more than it should",
			})
		}
		if !restricted.Equal(want.Filter) {
			grant = append(grant, step.Step{
				Kind: KindLoginFilter, Phase: step.GrantAccess, Disruption: step.None,
				Args: step.Must(LoginFilterArgs{want.Cgroup, &want.Filter}), Undo: step.Must(LoginFilterArgs{want.Cgroup, &restricted}),
				Text: fmt.Sprintf("close only %s to %s%s", gpuText(want.Filter), target, exceptionText(want.Filter)), Reason: "it denies more than it should",
			})
		}
	}
	for _, s := range observed {
		if slices.ContainsFunc(desired, func(d device.LoginFilterState) bool { return d.Cgroup == s.Cgroup }) {
			continue
		}
		grant = append(grant, step.Step{
			Kind: KindLoginFilter, Phase: step.GrantAccess, Disruption: step.None,
			Args: step.Must(LoginFilterArgs{Cgroup: s.Cgroup}), Undo: step.Must(LoginFilterArgs{s.Cgroup, &s.Filter}),
			Text: "take the guard off " + filterTarget(s.Cgroup, logins), Reason: "the spec asks for none there",
		})
	}
	return append(revoke, grant...)
}

func filterTarget(cg, logins string) string {
	if cg == logins {
		return fmt.Sprintf("logins (%s)", cg)
	}
	return cg
}

// restrictFilter is the guard as it is, and what the wanted one closes beside, with the exceptions of both. A device that was
// open to all so far keeps those who are to have it.
func restrictFilter(is, want device.LoginFilter) device.LoginFilter {
	restricted := device.LoginFilter{Closed: slices.Concat(is.Closed, want.Closed)}
	for _, e := range want.Except {
		wasClosed := slices.ContainsFunc(is.Closed, func(r device.Range) bool { return r.Has(e.Rule.Type, e.Rule.Major, e.Rule.Minor) })
		if !wasClosed || slices.Contains(is.Except, e) {
			restricted.Except = append(restricted.Except, e)
		}
	}
	for _, e := range is.Except {
		// What will be open to all is not closed to who has it.
		willBeClosed := slices.ContainsFunc(want.Closed, func(r device.Range) bool { return r.Has(e.Rule.Type, e.Rule.Major, e.Rule.Minor) })
		if !willBeClosed {
			restricted.Except = append(restricted.Except, e)
		}
	}
	return restricted.Canonical()
}

// LoginFilterWriter is what the steps need of the host.
type LoginFilterWriter interface {
	Filters(ctx context.Context) ([]device.LoginFilterState, error)
	// ChangeFilter puts what change makes of the guard that stands onto the cgroup; nil is none. Nobody else changes a guard
	// in between.
	ChangeFilter(ctx context.Context, cg string, change func(current *device.LoginFilter) *device.LoginFilter) (wrote bool, err error)
}

// LoginFilterHandler carries out the steps of the guard. Leases come and go between the plan and its steps and have their
// exceptions changed at once. So of exceptions a step brings only what it adds and takes away.
type LoginFilterHandler struct {
	Filters LoginFilterWriter
}

// Applied tells whether the guard is as the step leaves it.
func (h *LoginFilterHandler) Applied(ctx context.Context, s step.Step) (bool, error) {
	from, to, err := loginFilterArgs(s)
	if err != nil {
		return false, err
	}
	all, err := h.Filters.Filters(ctx)
	if err != nil {
		return false, fmt.Errorf("cannot read the guards: %w", err)
	}
	i := slices.IndexFunc(all, func(g device.LoginFilterState) bool { return g.Cgroup == to.Cgroup })
	if i < 0 || to.Filter == nil {
		return i < 0 && to.Filter == nil, nil
	}
	return all[i].Filter.Equal(*reapply(from.Filter, to.Filter, &all[i].Filter)), nil
}

// Do sets the guard. Doing it twice is doing it once.
func (h *LoginFilterHandler) Do(ctx context.Context, s step.Step) error {
	from, to, err := loginFilterArgs(s)
	if err != nil {
		return err
	}
	_, err = h.Filters.ChangeFilter(ctx, to.Cgroup, func(current *device.LoginFilter) *device.LoginFilter { return reapply(from.Filter, to.Filter, current) })
	return err
}

// Undo puts back what was before.
func (h *LoginFilterHandler) Undo(ctx context.Context, s step.Step) error {
	if len(s.Undo) == 0 {
		return nil
	}
	s.Args, s.Undo = s.Undo, s.Args
	return h.Do(ctx, s)
}

// reapply does to the guard that stands now what leads from one to the other. Where none stood before, what stands now came with
// a lease since: a login may be taken into a grant in the moment in which the guard is made.
func reapply(from, to, current *device.LoginFilter) *device.LoginFilter {
	if to == nil || current == nil {
		return to
	}
	if from == nil {
		from = &device.LoginFilter{}
	}
	out := device.LoginFilter{Closed: to.Closed, Except: slices.Clone(current.Except)}
	was, will := from.Canonical().Except, to.Canonical().Except
	out.Except = slices.DeleteFunc(out.Except, func(e device.Exception) bool {
		return slices.Contains(was, e) && !slices.Contains(will, e)
	})
	for _, e := range will {
		if !slices.Contains(was, e) {
			out.Except = append(out.Except, e)
		}
	}
	out = out.Canonical()
	return &out
}

// loginFilterArgs is what a step leads from, as far as it says, and to.
func loginFilterArgs(s step.Step) (from, to LoginFilterArgs, err error) {
	if s.Kind != KindLoginFilter {
		return from, to, unknownKind(s.Kind)
	}
	if err = decode(s.Args, &to); err == nil && len(s.Undo) > 0 {
		err = decode(s.Undo, &from)
	}
	return from, to, err
}
