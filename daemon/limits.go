package daemon

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// sliceLimits are the host limits of a tenant as its slice has them.
func sliceLimits(t *api.TenantSpec) cgroup.Limits {
	l := cgroup.Limits{TasksMax: t.Tasks}
	if t.CPU != nil {
		l.CPUWeight = t.CPU.Weight
		if t.CPU.Quota != nil {
			q := float64(*t.CPU.Quota)
			l.CPUQuota = &q
		}
	}
	if t.Memory != nil {
		l.MemoryMax, l.MemoryHigh, l.SwapMax = (*uint64)(t.Memory.Max), (*uint64)(t.Memory.High), (*uint64)(t.Memory.Swap)
	}
	if t.IO != nil {
		l.IOWeight = t.IO.Weight
	}
	return l
}

// limitsOf shows a tenant's limits: what is asked for, and what was read back.
func limitsOf(t *api.TenantSpec, enforcing bool, info cgroup.Info, observed []cgroup.SliceState) []api.LimitStatus {
	want := sliceLimits(t).Canonical()
	var have cgroup.Limits
	if i := slices.IndexFunc(observed, func(s cgroup.SliceState) bool { return s.Name == (cgroup.SliceName{Tenant: t.Name}) }); i >= 0 {
		have = observed[i].Limits
	}
	var out []api.LimitStatus
	inForce := isolation.Limits(have, exactBytes)
	for i, w := range isolation.Limits(want, exactBytes) {
		if w.Value == "" {
			continue
		}
		l := api.LimitStatus{Name: w.Name, Wanted: w.Value}
		switch {
		case !enforcing:
			l.Reason = "the spec says enforce: observe"
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

// nearStrict tells whether the memory of the tenant's leases is bound to the NUMA nodes of their GPUs.
func (d *desired) nearStrict(tenant string) bool {
	return d.spec != nil && slices.ContainsFunc(d.spec.Tenants, func(t api.TenantSpec) bool {
		return t.Name == tenant && t.CPU != nil && t.CPU.Near == "strict"
	})
}

// memoryNear is the NUMA nodes of a lease's GPUs; why tells what could not be found out.
func (d *Policy) memoryNear(node *observe.Node, l *lease.Lease) (list, why string) {
	hw, err := d.hardware(node, nil)
	if err != nil {
		return "", "cpu.near: strict: memory is not bound: " + err.Error()
	}
	return isolation.MemoryNear(&hw, l.Place.GPUs)
}

// loginLimitStatus shows a tenant's limit for each login.
func (d *Viewer) loginLimitStatus(want *desired, t *api.TenantSpec) []api.LimitStatus {
	if t.PerLogin == nil || t.PerLogin.Memory == nil {
		return nil
	}
	limit := uint64(*t.PerLogin.Memory)
	out := api.LimitStatus{Name: "per_login.memory", Wanted: exactBytes(limit)}
	held := d.told.adoption.loginsHeld(t.Name, limit)
	switch {
	case !want.enforcing():
		out.Reason = "the spec says enforce: observe"
	case !d.limitsLogins || !slices.Contains(d.port.Info().Limits, "memory"):
		out.Reason = "no limits of logins on " + d.port.Info().Adapter
	case held == 0:
		out.Reason = "no member is logged in"
	default:
		out.InForce = exactBytes(limit)
		out.Reason = fmt.Sprintf("for each user who is logged in (%d now), beside the tenant's own limits: they do not add up", held)
	}
	return []api.LimitStatus{out}
}
