package devicepolicy

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// SliceLimits returns the host limits of a tenant as limits of its slice.
func SliceLimits(t *api.TenantSpec) cgroup.Limits {
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

// MemoryNodes returns the NUMA nodes of a lease's GPUs; why is set when they are not known.
func (pol *Policy) MemoryNodes(node *observe.Node, l *lease.Lease) (list, why string) {
	hw, err := pol.hardware(node, nil)
	if err != nil {
		return "", "cpu.numa: strict: memory is not bound: " + err.Error()
	}
	return isolation.MemoryNodes(&hw, l.Place.GPUs)
}
