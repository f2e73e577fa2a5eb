package mig

import (
	"github.com/gpushare/gpushare/gpu"
)

// The devices of the tests, from published `nvidia-smi mig -lgip` and `-lgipp` listings.

func profile(id uint32, name string, slices uint32, mib uint64, max, size uint32, starts ...uint32) gpu.Profile {
	n, err := ParseProfile(name)
	if err != nil {
		panic(err)
	}
	p := gpu.Profile{ID: id, Name: name, Slices: slices, Memory: mib << 20, Max: max, Attributes: n.Attributes}
	for _, s := range starts {
		p.Placements = append(p.Placements, gpu.Placement{Start: s, Size: size})
	}
	return p
}

// classic is the A100-40 with its five oldest profiles: 298 states, 38 multisets.
func classic() gpu.Profiles {
	return gpu.Profiles{Width: 8, GI: []gpu.Profile{
		profile(0, "7g.40gb", 7, 40192, 1, 8, 0),
		profile(5, "4g.20gb", 4, 19968, 1, 4, 0),
		profile(9, "3g.20gb", 3, 19968, 2, 4, 0, 4),
		profile(14, "2g.10gb", 2, 9856, 3, 2, 0, 2, 4),
		profile(19, "1g.5gb", 1, 4864, 7, 1, 0, 1, 2, 3, 4, 5, 6),
	}}
}

// a100 is the A100-40 with all seven profiles.
func a100() gpu.Profiles {
	p := classic()
	p.GI = append(p.GI,
		profile(15, "1g.10gb", 1, 9856, 4, 2, 0, 2, 4, 6),
		profile(20, "1g.5gb+me", 1, 4864, 1, 1, 0, 1, 2, 3, 4, 5, 6))
	return p
}

// a30 has a grid of four slices.
func a30() gpu.Profiles {
	return gpu.Profiles{Width: 4, GI: []gpu.Profile{
		profile(0, "4g.24gb", 4, 24064, 1, 4, 0),
		profile(5, "2g.12gb", 2, 11968, 2, 2, 0, 2),
		profile(6, "2g.12gb+me", 2, 11968, 1, 2, 0, 2),
		profile(14, "1g.6gb", 1, 5952, 4, 1, 0, 1, 2, 3),
		profile(21, "1g.6gb+me", 1, 5952, 1, 1, 0, 1, 2, 3),
	}}
}

// rtx is the RTX PRO 6000: a grid of twelve slices and every attribute.
func rtx() gpu.Profiles {
	return gpu.Profiles{Width: 12, GI: []gpu.Profile{
		profile(0, "4g.96gb", 4, 97280, 1, 12, 0),
		profile(5, "2g.48gb", 2, 48512, 2, 6, 0, 6),
		profile(14, "1g.24gb", 1, 24192, 4, 3, 0, 3, 6, 9),
		profile(21, "1g.24gb+me", 1, 24192, 1, 3, 0, 3, 6, 9),
		profile(32, "4g.96gb+gfx", 4, 97280, 1, 12, 0),
		profile(35, "2g.48gb+gfx", 2, 48512, 2, 6, 0, 6),
		profile(47, "1g.24gb+gfx", 1, 24192, 4, 3, 0, 3, 6, 9),
		profile(64, "2g.48gb+me.all", 2, 48512, 1, 6, 0, 6),
		profile(65, "1g.24gb+me.all", 1, 24192, 1, 3, 0, 3, 6, 9),
		profile(66, "2g.48gb-me", 2, 48512, 2, 6, 0, 6),
		profile(67, "1g.24gb-me", 1, 24192, 4, 3, 0, 3, 6, 9),
	}}
}

// instance returns an instance of a profile at a start, with one compute instance.
func instance(p gpu.Profiles, name string, start uint32) gpu.Instance {
	for _, q := range p.GI {
		if q.Name == name {
			size := q.Placements[0].Size
			return gpu.Instance{
				ID: start + 100*size, ProfileID: q.ID, Placement: gpu.Placement{Start: start, Size: size},
				Compute: []gpu.ComputeInstance{{ProfileID: q.Slices, Placement: gpu.Placement{Size: q.Slices}}},
			}
		}
	}
	panic("no profile " + name)
}

// grid is a GPU of a number of slices.
type grid struct {
	name string
	p    gpu.Profiles
}

// grids are GPUs of 4, 8 and 12 slices.
func grids() []grid { return []grid{{"A30", a30()}, {"A100", a100()}, {"RTX", rtx()}} }
