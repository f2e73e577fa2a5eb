package isolation

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/internal/step"
)

// KindLoginFilter is the kind of step that sets or removes the login filter of a cgroup. Arguments and undo:
// LoginFilterArgs.
const KindLoginFilter = "login-filter.set"

// LoginFilterArgs is the desired login filter of a cgroup; nil means none.
type LoginFilterArgs struct {
	Cgroup string              `json:"cgroup"`
	Filter *device.LoginFilter `json:"filter,omitempty"`
}

// PlanLoginFilters returns the steps from the observed login filters to the desired ones. A filter that changes both
// ways has two steps, as slices have: one that revokes access before the hardware changes, and one that grants access
// afterwards.
func PlanLoginFilters(desired, observed []device.LoginFilterState, logins string) []step.Step {
	var revoke, grant []step.Step
	for _, want := range desired {
		i := slices.IndexFunc(observed, func(s device.LoginFilterState) bool { return s.Cgroup == want.Cgroup })
		target := filterTarget(want.Cgroup, logins)
		if i < 0 {
			revoke = append(revoke, step.Step{
				Kind:       KindLoginFilter,
				Phase:      step.RevokeAccess,
				Disruption: step.None,
				Args:       step.Must(LoginFilterArgs{want.Cgroup, &want.Filter}),
				Undo:       step.Must(LoginFilterArgs{Cgroup: want.Cgroup}),
				Text:       fmt.Sprintf("close %s to %s%s", gpuText(want.Filter), target, exceptionText(want.Filter)),
				Reason:     "it has no login filter yet; open files remain open",
			})
			continue
		}
		is := observed[i].Filter
		restricted := restrictFilter(is, want.Filter)
		if !restricted.Equal(is) {
			revoke = append(revoke, step.Step{
				Kind:       KindLoginFilter,
				Phase:      step.RevokeAccess,
				Disruption: step.None,
				Args:       step.Must(LoginFilterArgs{want.Cgroup, &restricted}),
				Undo:       step.Must(LoginFilterArgs{want.Cgroup, &is}),
				Text:       fmt.Sprintf("close %s to %s%s", gpuText(restricted), target, exceptionText(restricted)),
				Reason:     "it allows more than it should",
			})
		}
		if !restricted.Equal(want.Filter) {
			grant = append(grant, step.Step{
				Kind:       KindLoginFilter,
				Phase:      step.GrantAccess,
				Disruption: step.None,
				Args:       step.Must(LoginFilterArgs{want.Cgroup, &want.Filter}),
				Undo:       step.Must(LoginFilterArgs{want.Cgroup, &restricted}),
				Text:       fmt.Sprintf("close only %s to %s%s", gpuText(want.Filter), target, exceptionText(want.Filter)),
				Reason:     "it denies more than it should",
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
			Text: "remove the login filter of " + filterTarget(s.Cgroup, logins), Reason: "the spec does not require it",
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

// restrictFilter returns a filter that allows exactly what both is and want allow.
func restrictFilter(is, want device.LoginFilter) device.LoginFilter {
	restricted := device.LoginFilter{Closed: slices.Concat(is.Closed, want.Closed)}
	for _, e := range want.Except {
		wasClosed := slices.ContainsFunc(is.Closed, func(r device.Range) bool { return r.Has(e.Rule.Type, e.Rule.Major, e.Rule.Minor) })
		if !wasClosed || slices.Contains(is.Except, e) {
			restricted.Except = append(restricted.Except, e)
		}
	}
	for _, e := range is.Except {
		// want opens the device to all users, so the users with an exception keep access.
		willBeClosed := slices.ContainsFunc(
			want.Closed, func(r device.Range) bool { return r.Has(e.Rule.Type, e.Rule.Major, e.Rule.Minor) },
		)
		if !willBeClosed {
			restricted.Except = append(restricted.Except, e)
		}
	}
	return restricted.Canonical()
}

// LoginFilterWriter is what the steps need of the host.
type LoginFilterWriter interface {
	Filters(ctx context.Context) ([]device.LoginFilterState, error)
	// ChangeFilter replaces the active filter of the cgroup by the result of change; nil means none. No other change can
	// come in between.
	ChangeFilter(ctx context.Context, cg string, change func(current *device.LoginFilter) *device.LoginFilter) (wrote bool, err error)
}

// LoginFilterHandler carries out the steps of login filters. Leases may start and end between the plan and its steps, and
// change the exceptions immediately. So a step adds and removes only the exceptions that it changes.
type LoginFilterHandler struct {
	Host LoginFilterWriter
}

// Applied reports whether the filter is as the step leaves it.
func (h *LoginFilterHandler) Applied(ctx context.Context, s step.Step) (bool, error) {
	from, to, err := loginFilterArgs(s)
	if err != nil {
		return false, err
	}
	all, err := h.Host.Filters(ctx)
	if err != nil {
		return false, fmt.Errorf("cannot read the login filters: %w", err)
	}
	i := slices.IndexFunc(all, func(g device.LoginFilterState) bool { return g.Cgroup == to.Cgroup })
	if i < 0 || to.Filter == nil {
		return i < 0 && to.Filter == nil, nil
	}
	return all[i].Filter.Equal(*reapply(from.Filter, to.Filter, &all[i].Filter)), nil
}

// Do sets the filter. It is idempotent.
func (h *LoginFilterHandler) Do(ctx context.Context, s step.Step) error {
	from, to, err := loginFilterArgs(s)
	if err != nil {
		return err
	}
	_, err = h.Host.ChangeFilter(
		ctx, to.Cgroup, func(current *device.LoginFilter) *device.LoginFilter { return reapply(from.Filter, to.Filter, current) },
	)
	return err
}

// Undo restores the previous filter.
func (h *LoginFilterHandler) Undo(ctx context.Context, s step.Step) error {
	if len(s.Undo) == 0 {
		return nil
	}
	s.Args, s.Undo = s.Undo, s.Args
	return h.Do(ctx, s)
}

// reapply applies the difference between from and to to the active filter. When from is nil and there is an active
// filter, a lease has set it since the plan: a login may be adopted while the filter is set.
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

// loginFilterArgs returns the filters before and after a step. from is empty for a step without undo data.
func loginFilterArgs(s step.Step) (from, to LoginFilterArgs, err error) {
	if s.Kind != KindLoginFilter {
		return from, to, unknownKind(s.Kind)
	}
	if err = decode(s.Args, &to); err == nil && len(s.Undo) > 0 {
		err = decode(s.Undo, &from)
	}
	return from, to, err
}
