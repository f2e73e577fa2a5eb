// Package observetest has observed GPUs for tests of planning and status. Only tests use it.
package observetest

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
)

// A100 is what an A100 with 40 GB can be partitioned into (NVIDIA's MIG user guide, tables of profiles and placements).
func A100() *gpu.Profiles {
	places := func(size uint32, starts ...uint32) []gpu.Placement {
		var out []gpu.Placement
		for _, s := range starts {
			out = append(out, gpu.Placement{Start: s, Size: size})
		}
		return out
	}
	return &gpu.Profiles{Width: 8, GI: []gpu.Profile{
		{ID: 19, Name: "1g.5gb", Slices: 1, Memory: 5 << 30, Max: 7, Placements: places(1, 0, 1, 2, 3, 4, 5, 6)},
		{ID: 14, Name: "2g.10gb", Slices: 2, Memory: 10 << 30, Max: 3, Placements: places(2, 0, 2, 4)},
		{ID: 9, Name: "3g.20gb", Slices: 3, Memory: 20 << 30, Max: 2, Placements: places(4, 0, 4)},
		{ID: 5, Name: "4g.20gb", Slices: 4, Memory: 20 << 30, Max: 1, Placements: places(4, 0)},
		{ID: 0, Name: "7g.40gb", Slices: 7, Memory: 40 << 30, Max: 1, Placements: places(8, 0)},
	}}
}

// Instance is a complete instance of an A100.
func Instance(profile, start uint32) gpu.Instance {
	for _, p := range A100().GI {
		if p.ID == profile {
			return gpu.Instance{
				ID: start + 1, ProfileID: profile, Placement: gpu.Placement{Start: start, Size: p.Placements[0].Size},
				Compute: []gpu.ComputeInstance{{UUID: "MIG-x", Placement: gpu.Placement{Size: p.Slices}}},
			}
		}
	}
	panic("no such profile")
}

// One is the UUID of the GPU that Device returns.
const One = gpu.UUID("GPU-1")

// Device is a MIG-capable GPU.
func Device(on bool, instances ...gpu.Instance) observe.GPU {
	no := false
	return observe.GPU{Profiles: A100(), Snapshot: gpu.Snapshot{
		Identity: gpu.Identity{UUID: One, Index: 1}, ComputeMode: gpu.ComputeDefault,
		MIG: gpu.MIGState{Capable: true, Current: on, Pending: on, Resetless: &no}, Instances: instances,
	}}
}

// With is a GPU with a change.
func With(g observe.GPU, change func(*observe.GPU)) observe.GPU {
	change(&g)
	return g
}
