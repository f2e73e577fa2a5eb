package mig

import (
	"cmp"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// Layout is the instances of a GPU with their placements. It is recorded as achieved and restored after a boot.
type Layout []Placed

// Record converts the instances of a GPU to a layout, sorted by placement.
func Record(p gpu.Profiles, instances []gpu.Instance) Layout {
	var out Layout
	for _, in := range instances {
		out = append(out, placedOf(p, in))
	}
	slices.SortFunc(out, func(a, b Placed) int { return order(a.Placement, b.Placement) })
	return out
}

// SameLayout reports whether two layouts have the same instances at the same placements. Names are not compared, because
// drivers rename profiles.
func SameLayout(a, b Layout) bool {
	key := func(x, y Placed) int {
		if d := order(x.Placement, y.Placement); d != 0 {
			return d
		}
		return cmp.Compare(x.ProfileID, y.ProfileID)
	}
	a, b = slices.SortedFunc(slices.Values(a), key), slices.SortedFunc(slices.Values(b), key)
	return slices.EqualFunc(a, b, func(x, y Placed) bool {
		return x.ProfileID == y.ProfileID && x.Placement == y.Placement && sameCompute(x.Compute, y.Compute)
	})
}

// Requests requests exactly this layout: the same profiles at the same placements, so that the instances get the same ids
// and UUIDs again.
func (l Layout) Requests() []Request {
	out := make([]Request, len(l))
	for i, p := range l {
		out[i] = Request{Name: p.Name, At: &p.Placement, Compute: p.Compute}
	}
	return out
}

// Restore plans a recorded layout at its placements: it is Plan with every placement fixed.
func Restore(p gpu.Profiles, present []Present, recorded Layout, o Options) (Result, error) {
	return Plan(p, present, recorded.Requests(), o)
}

// RestoreAssumed plans a recorded layout on a GPU whose MIG mode is off and whose driver reports no profiles then. Nothing is on the
// GPU, and the record has been on it: no search is needed. The names are those of assumed profiles; nil: none are known.
func RestoreAssumed(assumed *gpu.Profiles, recorded []gpu.Instance) Result {
	var p gpu.Profiles
	if assumed != nil {
		p = *assumed
	}
	r := Result{Assumed: true, recorded: true, Create: Record(p, recorded)}
	for i := range r.Create {
		in := &r.Create[i]
		j := slices.IndexFunc(recorded, func(was gpu.Instance) bool { return was.Placement == in.Placement })
		if in.Slices == 0 && len(in.Compute) == 0 { // Without the slices of the profile it is not known whether one is all of it.
			for _, c := range recorded[j].Compute {
				in.Compute = append(in.Compute, c.Again())
			}
		}
	}
	largestInstancesFirst(r.Create)
	r.Layout = r.Create
	return r
}

// Placeable lists the profiles of which one more instance could be created next to the existing ones, with the free
// placements of each, in the order of p.GI.
func Placeable(p gpu.Profiles, instances []gpu.Instance) []Capacity {
	present := make([]Present, len(instances))
	for i := range instances {
		present[i] = Present{Instance: instances[i], InUse: true}
	}
	pr, err := newProblem(p, present, nil, Options{})
	if err != nil {
		return nil
	}
	t := tally{of: make([]uint32, len(p.GI))}
	var mask uint64
	for i := range present {
		mask |= pr.masks[i]
		if pr.profile[i] >= 0 {
			t.count(pr.rules[pr.profile[i]], 1)
			t.of[pr.profile[i]]++
		}
	}
	var out []Capacity
	for i := range p.GI {
		if !pr.add(&t, i) {
			continue
		}
		pr.drop(&t, i)
		r := Capacity{Profile: p.GI[i]}
		for _, place := range p.GI[i].Placements {
			if maskOf(place)&mask == 0 {
				r.Free = append(r.Free, place)
			}
		}
		if len(r.Free) != 0 {
			out = append(out, r)
		}
	}
	return out
}

// Capacity is a profile that could be placed now, with its free placements.
type Capacity struct {
	Profile gpu.Profile
	Free    []gpu.Placement
}
