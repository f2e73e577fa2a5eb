package enforce

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
)

// leaseUse is what the processes of a lease use of the GPU.
type leaseUse struct {
	memory    *uint64 // bytes; nil: the driver does not report that of a process
	processes map[int]bool
}

// usesOf adds up what each lease uses.
func (en *Enforcer) usesOf(leases []lease.Lease, processes []gpu.Process) map[string]*leaseUse {
	used := make(map[string]*leaseUse, len(leases))
	for i := range leases {
		used[leases[i].ID] = &leaseUse{memory: new(uint64), processes: map[int]bool{}}
	}
	leaseOf := en.Attribution.LeaseLookup(len(processes))
	for i := range processes {
		p := &processes[i]
		id, ok := leaseOf(p.PID)
		u := used[id]
		if !ok || u == nil || u.processes[p.PID] {
			continue // A process may be in two of the driver's lists, with the same memory.
		}
		u.processes[p.PID] = true
		switch {
		case p.Memory == nil:
			u.memory = nil
		case u.memory != nil:
			*u.memory += *p.Memory
		}
	}
	return used
}
