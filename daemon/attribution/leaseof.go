package attribution

import (
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// PortOf is what holds a running lease's processes. On a node that only observes nobody was moved anywhere.
func (attr *Attribution) PortOf(l *lease.Lease) cgroup.Port {
	if l.InPlace() {
		return attr.InPlacePort(l)
	}
	if l.Isolation.Cgroup == "" {
		return attr.Follow
	}
	return attr.Port
}

// LeaseOf tells whose process it is, whichever port holds it: a scope of its own before the tree that it is in, and that
// before the cgroup.
func (attr *Attribution) LeaseOf(pid int) (string, bool) {
	if id, ok := attr.Port.ScopeOf(pid); ok {
		return id, true
	}
	if attr.Port != cgroup.Port(attr.Follow) {
		if id, ok := attr.Follow.ScopeOf(pid); ok {
			return id, true
		}
	}
	return attr.Attachments.ScopeOf(pid)
}

// indexThreshold is from how many on all of them are listed at once: one read for each would take longer.
const indexThreshold = 64

// LeaseLookup is ownerOf for about so many processes, as of now.
func (attr *Attribution) LeaseLookup(about int) func(pid int) (string, bool) {
	if about < indexThreshold {
		return attr.LeaseOf
	}
	scoped, attached := pidLookup(attr.Port), pidLookup(attr.Attachments)
	return func(pid int) (string, bool) {
		if id, ok := scoped(pid); ok {
			return id, true
		}
		if attr.Port != cgroup.Port(attr.Follow) {
			if id, ok := attr.Follow.ScopeOf(pid); ok {
				return id, true
			}
		}
		return attached(pid)
	}
}

// pidLookup asks for all at once where the adapter can.
func pidLookup(p cgroup.Port) func(pid int) (string, bool) {
	list := p.Abilities().PIDIndex
	if list == nil {
		return p.ScopeOf
	}
	all := list()
	return func(pid int) (string, bool) { id, ok := all[pid]; return id, ok }
}

// Usage answers who uses what from the lease table as it is now.
func (attr *Attribution) Usage() planner.Usage {
	return attr.UsageUnder(attr.State.Desired(), planner.OpenDevices{})
}

// UsageUnder is usage with what a spec says of the processes that are in the way, and with who has devices open.
func (attr *Attribution) UsageUnder(want *state.Desired, o planner.OpenDevices) planner.Usage {
	live, st := attr.Table.Live(), attr.State.Kept()
	return planner.Usage{
		Instance: func(id gpu.UUID, p gpu.Placement) []string {
			var out []string
			for i := range live {
				if pl := &live[i].Place; pl.Instance != nil && *pl.Instance == p && slices.Contains(pl.GPUs, id) && !state.StaleIn(st, &live[i]) {
					out = append(out, live[i].ID)
				}
			}
			return out
		},
		GPU: func(id gpu.UUID) []string {
			var out []string
			for i := range live {
				if slices.Contains(live[i].Place.GPUs, id) {
					out = append(out, live[i].ID)
				}
			}
			return out
		},
		Managed: attr.State.Ours,
		Imported: func(id gpu.UUID, p gpu.Placement) bool {
			a := st.Achieved[id]
			m := state.MarkOf(&a, p)
			return m != nil && m.Imported
		},
		Process:     func(m *mps.State, pid int) planner.DeviceUser { return attr.deviceUser(want, m, pid) },
		OpenDevices: o,
	}
}

// InPlacePort is what holds a lease whose processes stay where they are: their cgroup, or the tree under one process.
func (attr *Attribution) InPlacePort(l *lease.Lease) cgroup.Port {
	if l.Cgroup != "" {
		return attr.Attachments
	}
	return attr.Follow
}

// Ticks is how many clock ticks /proc counts in a second, on every Linux that NVIDIA has a driver for.
const Ticks = 100
