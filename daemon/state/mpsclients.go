package state

import (
	"maps"

	"github.com/gpushare/gpushare/gpu"
)

// MPSClients counts the clients of the MPS server of each GPU by the lease that they are in; under "" those of no lease.
type MPSClients map[gpu.UUID]map[string]int

// SetMPSClients replaces the count. The caller does not change it afterwards.
func (x *State) SetMPSClients(c MPSClients) { x.mpsClients.Store(&c) }

// SetMPSClientsOn replaces the count of one GPU. It reports whether that may matter to a request: it differs, and less than half of the
// most clients are left, or were.
func (x *State) SetMPSClientsOn(id gpu.UUID, count map[string]int, most int) bool {
	for {
		old := x.mpsClients.Load()
		next := MPSClients{}
		if old != nil {
			maps.Copy(next, *old)
		}
		before := next[id]
		next[id] = count
		if x.mpsClients.CompareAndSwap(old, &next) {
			return !maps.Equal(before, count) && 2*max(total(before), total(count)) > most
		}
	}
}

func total(count map[string]int) (n int) {
	for _, c := range count {
		n += c
	}
	return n
}

// MPSClients is the newest count.
func (x *State) MPSClients() MPSClients {
	if c := x.mpsClients.Load(); c != nil {
		return *c
	}
	return nil
}
