package gpu

import (
	"cmp"
	"slices"
)

// ComputeAlign is the alignment of a compute instance: its start is a multiple of this number of slices. The driver's
// interface divides compute into halves, quarters and eighths (NV2080_CTRL_GPU_PARTITION_FLAG_COMPUTE_SIZE_*, open kernel
// modules). Three slices are a "mini half" and start where a half starts. Not verified on hardware.
func ComputeAlign(slices uint32) uint32 {
	align := uint32(1)
	for align < slices {
		align *= 2
	}
	return align
}

// ComputeOrder sorts the compute instances of one GPU instance into the order of their creation. A driver that uses the
// first free placement then has one for each: first those with a placement, then those that are as large as their
// alignment, largest first, then those of three slices, which leave one slice free, and then those of one slice.
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
