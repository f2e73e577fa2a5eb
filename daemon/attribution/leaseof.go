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

// PortOf returns the port for a running lease's processes. On a node that only observes no process was moved.
func (attr *Attribution) PortOf(l *lease.Lease) cgroup.Port {
	if l.InPlace() {
		return attr.InPlacePort(l)
	}
	if l.Isolation.Cgroup == "" {
		return attr.Follow
	}
	return attr.Port
}

// LeaseOf returns the lease of a process, from any port: first a scope of its own, then the process tree that it is in,
// then its cgroup.
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

// indexThreshold is the number of processes from which all are listed at once: one read for each would take longer.
const indexThreshold = 64

// LeaseLookup returns LeaseOf as of now, for about so many processes. Each is read once: lists of samples have a process many times.
func (attr *Attribution) LeaseLookup(about int) func(pid int) (string, bool) {
	if about < indexThreshold {
		return once(attr.LeaseOf)
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

// once remembers what a lookup returned.
func once(lookup func(pid int) (string, bool)) func(pid int) (string, bool) {
	type result struct {
		lease string
		ok    bool
	}
	known := map[int]result{}
	return func(pid int) (string, bool) {
		r, ok := known[pid]
		if !ok {
			r.lease, r.ok = lookup(pid)
			known[pid] = r
		}
		return r.lease, r.ok
	}
}

// pidLookup lists all pids at once if the adapter can.
func pidLookup(p cgroup.Port) func(pid int) (string, bool) {
	list := p.Abilities().PIDIndex
	if list == nil {
		return p.ScopeOf
	}
	all := list()
	return func(pid int) (string, bool) { id, ok := all[pid]; return id, ok }
}

// Usage returns what is in use according to the lease table now.
func (attr *Attribution) Usage() planner.Usage {
	return attr.UsageUnder(attr.State.Desired(), planner.OpenDevices{})
}

// UsageUnder is Usage with what a spec says about processes in the way, and with the processes that have devices open.
func (attr *Attribution) UsageUnder(want *state.Desired, o planner.OpenDevices) planner.Usage {
	live, st := attr.Table.Live(), attr.State.Stored()
	return planner.Usage{
		Instance: func(id gpu.UUID, p gpu.Placement) []string {
			var out []string
			for i := range live {
				if pl := &live[i].Place; pl.Instance != nil && *pl.Instance == p && slices.Contains(pl.GPUs, id) &&
					!state.StaleIn(st, &live[i]) {
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
		Managed: attr.State.ManagesInstance,
		Imported: func(id gpu.UUID, p gpu.Placement) bool {
			a := st.Achieved[id]
			m := state.InstanceRecordOf(&a, p)
			return m != nil && m.Imported
		},
		Process:     func(daemons []*mps.State, pid int) planner.DeviceUser { return attr.deviceUser(want, daemons, pid) },
		OpenDevices: o,
	}
}

// InPlacePort returns the port of a lease in place: of its cgroup, or of the tree of one process.
func (attr *Attribution) InPlacePort(l *lease.Lease) cgroup.Port {
	if l.Cgroup != "" {
		return attr.Attachments
	}
	return attr.Follow
}
