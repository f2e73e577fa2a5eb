package planner

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/rename"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/lease"
)

// maxCommand is how much of a lease's command a refusal has.
const maxCommand = 80

// LeaseEnds says for each lease that a change ends, or ends the enforcement of, what ends. now and want are the specs before and after.
// It is pure.
func LeaseEnds(now, want *state.Desired, live []lease.Lease, steps []step.Step) []api.LeaseEnd {
	var out []api.LeaseEnd
	for i := range live {
		l := &live[i]
		ends, continues := leaseEnd(now, want, l, steps)
		lowers := false
		if ends == "" {
			ends = lowered(now, want, l)
			lowers, continues = true, true
		}
		if ends == "" {
			continue
		}
		out = append(out, api.LeaseEnd{
			Lease:     l.ID,
			Tenant:    l.Terms.Tenant,
			Grant:     l.Terms.Spec.Name,
			User:      l.User,
			Command:   text.Short(strings.Join(l.Command, " "), maxCommand),
			Ends:      ends,
			Continues: continues,
			Lowers:    lowers,
		})
	}
	return out
}

// leaseEnd is what ends for one lease, and whether its processes continue; empty: nothing.
func leaseEnd(now, want *state.Desired, l *lease.Lease, steps []step.Step) (ends string, continues bool) {
	if want.Enforcing() || want.Unmanaged != nil { // Otherwise no step is carried out.
		if ends, continues = endedBy(l, steps); ends != "" {
			return ends, continues
		}
	}
	key := state.GrantKey{Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name}
	_, had := now.Grants[state.GrantKey(want.Renames.In(want.Generation).Before(rename.Name(key)))]
	_, has := want.Grants[key]
	switch {
	case !now.Enforcing(), l.State == lease.Ending:
		return "", false
	case !want.Enforcing():
		return "the enforcement of its limits ends", true
	case had && !has: // An adopted one: adoption releases it when the spec is in force.
		return fmt.Sprintf("it ends, because the spec no longer has grant %s of %s", l.Terms.Spec.Name, l.Terms.Tenant), true
	}
	return "", false
}

// lowered is what a lease loses of what it has for itself, which an engine was promised; empty: nothing.
func lowered(now, want *state.Desired, l *lease.Lease) string {
	t, ok := want.Tenant(l.Terms.Tenant)
	if !ok || !now.Enforcing() || !want.Enforcing() || l.State == lease.Ending {
		return ""
	}
	i := slices.IndexFunc(t.Grants, func(g api.GrantSpec) bool { return g.Name == l.Terms.Spec.Name })
	if i < 0 {
		return ""
	}
	return l.Loses(&lease.Grant{Tenant: t.Name, Spec: t.Grants[i]})
}

// endedBy is which of the steps ends a lease, or disturbs it.
func endedBy(l *lease.Lease, steps []step.Step) (ends string, continues bool) {
	for i := range steps {
		s := &steps[i]
		var args LeaseStopArgs
		if s.Kind != KindLeaseStop && s.Kind != KindLeaseRelease || json.Unmarshal(s.Args, &args) != nil || args.Lease != l.ID {
			continue
		}
		return "it ends, because " + s.Reason, s.Kind == KindLeaseRelease
	}
	for i := range steps {
		isLease := func(on step.Subject) bool { return on.Kind == step.Lease && on.ID == l.ID }
		if s := &steps[i]; s.Disruption == step.Running && slices.ContainsFunc(s.Disturbs, isLease) {
			return fmt.Sprintf("it is disturbed: %s, because %s", s.Text, s.Reason), false
		}
	}
	return "", false
}

// AdmitEnds refuses to end leases, or the enforcement of their limits, without authority. command is the refused one without options.
func AdmitEnds(now, want *state.Desired, ends []api.LeaseEnd, a Authority, command string) error {
	if len(ends) == 0 || a.Force {
		return nil
	}
	with := Remedies{Command: command, Had: a}
	forced := with.with(Authority{Force: true})
	e := &api.Error{
		Kind:    api.KindInUse,
		Message: fmt.Sprintf("cannot apply the spec: it ends leases, and %s", running(len(ends))),
		Hint:    fmt.Sprintf("nothing was changed; 'gpushare lease stop LEASE' ends one, '%s' ends all of them", forced),
		Leases:  ends,
	}
	if !slices.ContainsFunc(ends, func(l api.LeaseEnd) bool { return !l.Lowers }) {
		e.Message = fmt.Sprintf("cannot apply the spec: it takes from leases what they have for themselves, and %s", running(len(ends)))
		e.Hint = fmt.Sprintf("nothing was changed; wait until they end, or '%s' takes it nevertheless", forced)
	}
	if now.Enforcing() && !want.Enforcing() {
		e.Message = fmt.Sprintf(
			"cannot apply the spec: it ends the enforcement on this node (node.enforce is not on), and %s", running(len(ends)),
		)
		e.Hint = fmt.Sprintf(
			"nothing was changed; write 'node: {enforce: on}' in the spec; '%s' ends it nevertheless, and the leases go on without; "+
				"'gpushare unmanage' also removes what the kernel enforces by itself", forced,
		)
	}
	return e
}

func running(n int) string {
	if n == 1 {
		return "1 lease runs"
	}
	return text.Count(n, "lease") + " run"
}

// DisarmingWarning says what stays of the enforcement that a spec ends; empty: it ends none.
func DisarmingWarning(now, want *state.Desired) string {
	if !now.Enforcing() || want.Enforcing() {
		return ""
	}
	return "this ends the enforcement on the node: cgroup slices with their limits and device rules stay as they are, and nothing " +
		"corrects them any more; 'gpushare unmanage' removes them"
}
