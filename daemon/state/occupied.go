package state

import "github.com/gpushare/gpushare/gpu"

// Place is what one lease may have alone: an exclusive GPU, or a MIG instance of a GPU.
type Place struct {
	GPU      gpu.UUID
	Instance gpu.Placement // zero for the whole GPU
	Compute  gpu.UUID      // the MIG device of one of the instance's several compute instances; empty: all of the instance
}

// SetOccupied replaces the places that a process of no lease uses. The caller does not change the map afterwards.
func (x *State) SetOccupied(places map[Place]bool) { x.occupied.Store(&places) }

// Occupied are the places that a process of no lease uses.
func (x *State) Occupied() map[Place]bool {
	if places := x.occupied.Load(); places != nil {
		return *places
	}
	return nil
}
