package status

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/text"
)

// mostNamed is how many processes a check names; it counts the others.
const mostNamed = 8

// checkObserving says what 'enforce: on' would do, and to whom, on a node whose spec only observes.
func (v *Viewer) checkObserving(
	ctx context.Context, node *observe.Node, ok func(name, message string), warn func(name, message, hint string),
) {
	want := v.State.Desired()
	if want.Spec == nil || want.Enforcing() || node.DriverErr != nil {
		return
	}
	plan, err := v.plan(ctx, node, want)
	if err != nil {
		warn("enforce", "what 'enforce: on' would do cannot be planned: "+err.Error(), "")
		return
	}
	ok(
		"enforce",
		fmt.Sprintf(
			"is observe: nothing is changed, limited or stopped; 'on' would take %s, which 'gpushare plan' lists",
			text.Count(len(plan.Steps), "step"),
		),
	)
	for _, w := range plan.Warnings {
		warn("enforce", w, "an apply of the same spec with 'enforce: on' says what helps")
	}
	switch {
	case want.FiltersLogins(): // The plan names the processes that use managed GPUs outside a lease.
		ok(
			"enforce",
			"'on' would let no user but root open a managed GPU outside a lease, from "+strings.Join(
				slices.Concat([]string{"logins"}, want.ClosedUnits()), ", ",
			),
		)
	case want.StopsUnattributed():
		if outside := v.outside(node); len(outside) > 0 {
			warn(
				"enforce",
				"'on' would stop processes outside a lease, "+api.Duration(stop.UnattributedGrace).String()+
					" after they are found (node.isolation.unattributed: stop): "+strings.Join(outside, ", "),
				"let them end, attach them with 'gpushare lease attach', or warn their users",
			)
		}
	}
}

// outside names the processes with a context on managed GPUs that are in no lease and would be stopped.
func (v *Viewer) outside(node *observe.Node) []string {
	want, use := v.State.Desired(), v.Attribution.Usage()
	users, gpus := map[int]planner.DeviceUser{}, map[int][]string{} // by pid
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.Err != nil || !want.Manages(g.Identity.UUID) {
			continue
		}
		for _, p := range g.Processes {
			if u := use.Process(g.ControlDaemons(), p.PID); u.Decision == planner.Stop && u.Lease == "" && u.Start != 0 {
				users[p.PID] = u
				gpus[p.PID] = append(gpus[p.PID], g.Identity.Argument())
			}
		}
	}
	var out []string
	for _, pid := range slices.Sorted(maps.Keys(users)) {
		user := ""
		if uid, err := procfs.UID(pid); err == nil {
			user = " of " + v.Identities.Names.UserName(int(uid))
		}
		u, on := users[pid], slices.Compact(gpus[pid])
		out = append(out, fmt.Sprintf("%s%s on %s %s", u.String(), user, text.Plural(len(on), "GPU"), strings.Join(on, ", ")))
	}
	if more := len(out) - mostNamed; more > 0 {
		out = append(out[:mostNamed], fmt.Sprintf("%d more", more))
	}
	return out
}
