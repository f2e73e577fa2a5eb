package planner

import (
	"github.com/gpushare/gpushare/gpu"
)

// OpenDevices is who has the device nodes of GPUs open: monitors hold a GPU so, and no list of the driver has them. The zero
// value is that nobody looked.
type OpenDevices struct {
	Complete  bool               // at every process
	GPUs      map[gpu.UUID][]int // pids
	Instances map[InstanceKey][]int
}

// InstanceKey names an instance for as long as it lives.
type InstanceKey struct {
	GPU gpu.UUID
	GI  uint32
}

// of gives who has a GPU open, or one of its instances.
func (o *OpenDevices) of(id gpu.UUID, in *gpu.Instance) []int {
	if in == nil {
		return o.GPUs[id]
	}
	return o.Instances[InstanceKey{id, in.ID}]
}
