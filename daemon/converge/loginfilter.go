package converge

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
)

// correctLoginFilters corrects the login filters. It is separate from the other corrections: on a host where no program can be
// attached, slices are corrected nevertheless.
func (cv *Converger) correctLoginFilters(ctx context.Context, want *state.Desired, node *observe.Node) error {
	p, err := planner.PlanLoginFilter(node, cv.Policy.NodeInput(want, node, nil))
	if err != nil {
		return err
	}
	report := cv.loginFilterDrift(want, node)
	err = cv.CarryOut(ctx, append(p.Before, p.After...))
	report()
	return err
}

// updateLoginFilterConditions reports login filters that are missing, and those that the spec does not have.
func (cv *Converger) updateLoginFilterConditions(want *state.Desired, node *observe.Node) {
	now := map[string]api.Condition{}
	add := func(about, message, hint string) { now[about] = api.Condition{Message: message, Hint: hint} }
	const hasAccess = "logins have access to managed GPUs: "
	switch {
	case !want.Enforcing() || !want.FiltersLogins():
		if len(node.LoginFilters) > 0 && cv.State.Changing() == nil {
			add(
				"active",
				fmt.Sprintf("a login filter is active on %s, and the spec in force has none", node.LoginFilters[0].Cgroup),
				"it was attached at boot, or by a previous spec; remove it with 'gpushare unmanage', or apply a spec with enforce: on and isolation.logins: open",
			)
		}
	case cv.Logins.Reason != "":
		hint := "run gpushared as root on a host with cgroup v2"
		if cv.Logins.Supported {
			hint = "name the cgroup that holds logins in gpushared.yaml (logins_cgroup), or use systemd"
		}
		add("none", hasAccess+cv.Logins.Reason, hint)
	case node.LoginFiltersErr != nil:
		add(
			"unread", "cannot read whether logins have access to managed GPUs: "+node.LoginFiltersErr.Error(),
			"see the journal of gpushared",
		)
	default:
		states, missing, err := cv.Policy.DesiredFilters(want, node, nil, cv.Table.Live())
		if err != nil {
			add("unread", hasAccess+err.Error(), "")
		}
		for _, s := range states {
			if !slices.ContainsFunc(node.LoginFilters, func(g devices.LoginFilterState) bool { return g.Cgroup == s.Cgroup }) {
				reason := "no login filter is active on " + s.Cgroup
				if !cv.Logins.Exists(s.Cgroup) {
					reason = "there is no cgroup " + s.Cgroup
				} else if err := cv.Logins.LastError(); err != nil {
					reason = err.Error()
				}
				add(s.Cgroup, hasAccess+reason, "it is retried with every pass; 'gpushare doctor' reports what is missing")
			}
		}
		for _, m := range missing {
			add(m, m, "")
		}
	}
	cv.Conditions.Replace("login-filter", now)
}
