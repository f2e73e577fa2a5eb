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
		case c.Exact():
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

// SliceCount is the number of its slices; 0 when the driver reports neither its placement nor its profile.
func (c ComputeInstance) SliceCount() uint32 {
	if c.Placement.Size != 0 {
		return c.Placement.Size
	}
	return c.Slices
}

// Again requests the same compute instance at the same placement.
func (c ComputeInstance) Again() NewCompute {
	if c.Placement.Size != 0 {
		return NewCompute{Slices: c.Placement.Size, Placement: &c.Placement}
	}
	return NewCompute{Slices: c.Slices, UUID: c.UUID}
}

// Is reports whether a compute instance is one that is requested.
func (w NewCompute) Is(c ComputeInstance) bool {
	return w.Slices == c.SliceCount() && (w.Placement == nil || c.Placement.Size == 0 || *w.Placement == c.Placement) &&
		(w.UUID == "" || w.UUID == c.UUID)
}

// Exact reports whether a placement is requested, and not only a size.
func (w NewCompute) Exact() bool { return w.Placement != nil || w.UUID != "" }

// MissingCompute returns the requested compute instances that do not exist. Those with a placement are matched first.
func MissingCompute(want []NewCompute, have []ComputeInstance) []NewCompute {
	left := slices.Clone(have)
	take := func(w NewCompute) bool {
		i := slices.IndexFunc(left, w.Is)
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		return i >= 0
	}
	present := make([]bool, len(want))
	for i, w := range want {
		present[i] = w.Exact() && take(w)
	}
	for i, w := range want {
		present[i] = present[i] || !w.Exact() && take(w)
	}
	var out []NewCompute
	for i, w := range want {
		if !present[i] {
			out = append(out, w)
		}
	}
	return out
}

// Split reports whether its compute instances are not the usual single one with all slices of the instance: one program then
// gets a part of it. 0 slices: the profile is not listed.
func (in *Instance) Split(slices uint32) bool {
	return len(in.Compute) > 1 || len(in.Compute) == 1 && in.Compute[0].SliceCount() != 0 && in.Compute[0].SliceCount() < slices
}
