package status

import (
	"fmt"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// verdicts add checks to the result of doctor.
type verdicts struct {
	warn, fail func(name, message, hint string)
}

// checkOpen reports where a node that enforces is open: to logins, and beyond amounts of GPU memory that nothing enforces. What the
// administrator wrote so is a warning, and what the spec promises otherwise a failure. Conditions report a missing login filter.
func (v *Viewer) checkOpen(add verdicts) {
	want := v.State.Desired()
	if !want.Enforcing() {
		return // Another check says that nothing is enforced.
	}
	if len(want.Managed()) > 0 && !want.FiltersLogins() {
		add.warn(
			"logins", "have access to managed GPUs, without a lease too: isolation.logins of the spec is open",
			"write 'isolation: {logins: closed}' under node, and apply the spec",
		)
	}
	for i := range want.Spec.Tenants {
		v.checkReported(want, &want.Spec.Tenants[i], add)
	}
	live := v.Table.Live()
	for i := range live {
		if l := &live[i]; l.Memory() > 0 {
			v.checkLease(l, add)
		}
	}
}

// checkLease reports a lease whose GPU memory nothing limits, although the spec says so.
func (v *Viewer) checkLease(l *lease.Lease, add verdicts) {
	limit, c := api.Bytes(l.Memory()).Short(), v.Managers.Memory.Choice(l)
	if !c.Enforced {
		if v.Managers.Enforce.Overuse(l) == quota.OveruseFreeze {
			add.fail(
				"GPU memory", fmt.Sprintf("%s of lease %s is only reported: %s", limit, l.ID, c.Reason),
				"with 'overuse: {gpu_memory: kill}' it is stopped above its limit",
			)
		}
		return
	}
	wire := l.Wire()
	v.measure(&wire)
	if why := v.whyUnmeasured(&wire, c); why != "" && c.Backend != quota.BackendMPS { // Shares of MPS are shown as advisory.
		add.fail(
			"GPU memory", fmt.Sprintf("%s of lease %s is not enforced: %s", limit, l.ID, why),
			"MIG, whole GPUs and drivers from R615 on limit without that; 'gpushare explain "+l.ID+"' has all that is enforced",
		)
	}
}

// checkReported reports the grants of a tenant whose GPU memory nothing enforces.
func (v *Viewer) checkReported(want *state.Desired, t *api.TenantSpec, add verdicts) {
	var amounts []string
	reason := ""
	for i := range t.Grants {
		g := &t.Grants[i]
		limit := state.GrantMemory(g)
		if limit == 0 {
			continue
		}
		if c := v.weakestChoice(want, t, g); !c.Enforced {
			amounts = append(amounts, fmt.Sprintf("%s of grant %s", api.Bytes(limit).Short(), g.Name))
			reason = c.Reason
		}
	}
	if len(amounts) == 0 {
		return
	}
	verdict := add.warn
	if t.Overuse != nil && t.Overuse.GPUMemory == string(quota.OveruseFreeze) {
		verdict = add.fail // Leases above the limit should be frozen.
	}
	is := "is"
	if len(amounts) > 1 {
		is = "are"
	}
	verdict(
		"GPU memory",
		fmt.Sprintf("of tenant %s %s %s only reported: %s", t.Name, strings.Join(amounts, " and "), is, reason),
		"with 'overuse: {gpu_memory: kill}' of the tenant a lease above it is stopped; 'gpushare explain "+t.Name+"' has each amount",
	)
}
