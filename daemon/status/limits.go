package status

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/isolation"
)

// observes is why nothing is enforced on a node that only observes. keptText follows it where the kernel enforces it nevertheless, from
// a spec that did: the daemon neither removes nor corrects it.
const (
	observes = "the spec says enforce: observe"
	keptText = "; the kernel keeps it until 'gpushare unmanage'"
)

// limitsOf returns a tenant's limits: what is desired, and what was read back.
func limitsOf(t *api.TenantSpec, enforcing bool, info cgroup.Info, observed []cgroup.SliceState) []api.LimitStatus {
	want := devicepolicy.SliceLimits(t).Canonical()
	var have cgroup.Limits
	if i := slices.IndexFunc(observed, func(s cgroup.SliceState) bool { return s.Name == (cgroup.SliceName{Tenant: t.Name}) }); i >= 0 {
		have = observed[i].Limits
	}
	var out []api.LimitStatus
	inForce := isolation.Limits(have, exactBytes)
	for i, w := range isolation.Limits(want, exactBytes) {
		kept := !enforcing && inForce[i].Value != "" // The kernel has it from an earlier spec.
		if w.Value == "" && !kept {
			continue
		}
		l := api.LimitStatus{Name: w.Name, Desired: w.Value}
		switch {
		case kept:
			l.InForce, l.Reason = inForce[i].Value, observes+keptText
		case !enforcing:
			l.Reason = observes
		case !slices.Contains(info.Limits, w.Kind):
			l.Reason = "no " + w.Kind + " limits on " + info.Adapter
		case inForce[i].Value == "":
			l.Reason = "it is not set"
		default:
			l.InForce = inForce[i].Value
		}
		out = append(out, l)
	}
	return out
}

func exactBytes(n uint64) string { return api.Bytes(n).String() }

// loginLimitStatus returns a tenant's limit for each login.
func (v *Viewer) loginLimitStatus(want *state.Desired, t *api.TenantSpec) []api.LimitStatus {
	if t.PerLogin == nil || t.PerLogin.Memory == nil {
		return nil
	}
	limit := uint64(*t.PerLogin.Memory)
	out := api.LimitStatus{Name: "per_login.memory", Desired: exactBytes(limit)}
	limited := v.Managers.Adoption.LoginsLimited(t.Name, limit)
	switch {
	case !want.Enforcing():
		out.Reason = observes
	case !v.LimitsLogins || !slices.Contains(v.Port.Info().Limits, "memory"):
		out.Reason = "no limits of logins on " + v.Port.Info().Adapter
	case limited == 0:
		out.Reason = "no member is logged in"
	default:
		out.InForce = exactBytes(limit)
		out.Reason = fmt.Sprintf(
			"for each user who is logged in (%d now), in addition to the tenant's limits: each applies by itself", limited,
		)
	}
	return []api.LimitStatus{out}
}
