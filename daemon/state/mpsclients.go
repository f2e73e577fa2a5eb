package state

import "github.com/gpushare/gpushare/gpu"

// MPSClients counts the clients of the MPS server of each GPU by the lease that they are in; under "" those of no lease.
type MPSClients map[gpu.UUID]map[string]int

// SetMPSClients replaces the count. The caller does not change it afterwards.
func (x *State) SetMPSClients(c MPSClients) { x.mpsClients.Store(&c) }

// MPSClients is the newest count.
func (x *State) MPSClients() MPSClients {
	if c := x.mpsClients.Load(); c != nil {
		return *c
	}
	return nil
}
