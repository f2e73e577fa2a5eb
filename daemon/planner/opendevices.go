package planner

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// OpenDevices is which processes have device nodes of GPUs open. The driver lists only processes with a context on a GPU;
// monitors have none. The zero value means that processes were not read.
type OpenDevices struct {
	Complete  bool               // every process was read
	GPUs      map[gpu.UUID][]int // pids
	Instances map[InstanceKey][]int
	Compute   map[ComputeKey][]int // those of Instances that have a compute instance open, and not only its instance
}

// InstanceKey identifies an instance as long as it exists.
type InstanceKey struct {
	GPU gpu.UUID
	GI  uint32
}

// ComputeKey identifies a compute instance as long as it exists, by its MIG device.
type ComputeKey struct {
	GPU    gpu.UUID
	Device gpu.UUID
}

// Users returns the processes that have the GPU or one of its instances open.
func (o *OpenDevices) Users(id gpu.UUID) []int {
	out := slices.Clone(o.GPUs[id])
	for at, pids := range o.Instances {
		if at.GPU == id {
			out = append(out, pids...)
		}
	}
	return out
}

// of returns the pids that have a GPU open, or one of its instances.
func (o *OpenDevices) of(id gpu.UUID, in *gpu.Instance) []int {
	if in == nil {
		return o.GPUs[id]
	}
	return o.Instances[InstanceKey{id, in.ID}]
}
