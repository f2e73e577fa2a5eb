package gpu

import (
	"cmp"
	"slices"
)

// ComputeAlign is what the start of a compute instance of so many slices is a multiple of. The driver's interface cuts
// compute in halves, quarters and eighths (NV2080_CTRL_GPU_PARTITION_FLAG_COMPUTE_SIZE_*, open kernel modules), and three
// slices are a "mini half": they begin where a half begins. Not seen on hardware.
func ComputeAlign(slices uint32) uint32 {
	align := uint32(1)
	for align < slices {
		align *= 2
	}
	return align
}

// ComputeOrder is the order to make compute instances of one GPU instance in, such that a driver that takes the first place
// that is free has one for each: those with a placement, then those that fill what they are aligned to, largest first, then
// three slices, which leave a hole behind them, and then what goes into holes.
func ComputeOrder(want []NewCompute) []NewCompute {
	rank := func(c NewCompute) int {
		switch {
		case c.Placement != nil:
			return 0
		case c.Slices == 1:
			return 3
		case c.Slices != ComputeAlign(c.Slices) && c.Slices < 4:
			return 2
		}
		return 1
	}
	out := slices.Clone(want)
	slices.SortStableFunc(out, func(a, b NewCompute) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Slices, a.Slices))
	})
	return out
}
