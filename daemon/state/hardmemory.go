package state

import "github.com/gpushare/gpushare/gpu"

// HardMemory is whether limits of GPU memory on a GPU can be hard.
type HardMemory struct {
	Missing string // why not; empty if they can be, or if that is not known
	ByLease bool   // only for each lease by itself, not for a grant together
}

// SetHardMemory replaces what is known of the GPUs. The caller does not change the map afterwards.
func (x *State) SetHardMemory(known map[gpu.UUID]HardMemory) { x.hardMemory.Store(&known) }

// HardMemory is what is known of a GPU.
func (x *State) HardMemory(id gpu.UUID) HardMemory {
	if known := x.hardMemory.Load(); known != nil {
		return (*known)[id]
	}
	return HardMemory{}
}
