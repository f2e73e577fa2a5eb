package main

import (
	"math/rand/v2"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/mig"
)

// policy finds a placement for one more instance of a profile on GPUs where nothing may move; gpu is -1 if there is none.
type policy struct {
	name  string
	place func(p gpu.Profiles, gpus [][]mig.Present, profile int) (on int, at gpu.Placement)
}

var policies = []policy{
	{"gpushare", func(p gpu.Profiles, gpus [][]mig.Present, profile int) (int, gpu.Placement) {
		list := make([]mig.Candidate, len(gpus))
		for i := range gpus {
			list[i] = mig.Candidate{Profiles: p, Present: gpus[i]}
		}
		on, r := mig.Pick(list, mig.Request{Name: p.GI[profile].Name})
		if on < 0 {
			return -1, gpu.Placement{}
		}
		return on, r.Layout[0].Placement
	}},
	{"first fit", func(p gpu.Profiles, gpus [][]mig.Present, profile int) (int, gpu.Placement) {
		for i := range gpus {
			if at, ok := lowest(p, gpus[i], profile); ok {
				return i, at
			}
		}
		return -1, gpu.Placement{}
	}},
	{"best fit", func(p gpu.Profiles, gpus [][]mig.Present, profile int) (int, gpu.Placement) {
		best, where, least := -1, gpu.Placement{}, uint32(0)
		for i := range gpus {
			at, ok := lowest(p, gpus[i], profile)
			if !ok {
				continue
			}
			free := p.Width
			for _, b := range gpus[i] {
				free -= b.Placement.Size
			}
			if best < 0 || free < least {
				best, where, least = i, at, free
			}
		}
		return best, where
	}},
}

// lowest is the lowest free placement of a profile, which first fit and best fit use.
func lowest(p gpu.Profiles, present []mig.Present, profile int) (gpu.Placement, bool) {
	q := &p.GI[profile]
	same := uint32(0)
	for _, b := range present {
		if b.ProfileID == q.ID {
			same++
		}
	}
	if same >= q.Max {
		return gpu.Placement{}, false
	}
	for _, at := range q.Placements {
		if !slices.ContainsFunc(present, func(b mig.Present) bool { return b.Placement.Overlaps(at) }) {
			return at, true
		}
	}
	return gpu.Placement{}, false
}

// mix is a distribution of requests and the mean duration of an instance, chosen so that the node is a little too small.
type mix struct {
	name     string
	weight   map[string]float64
	duration float64
}

var mixes = []mix{
	{"mostly small", map[string]float64{"1g.5gb": 8, "2g.10gb": 4, "3g.20gb": 3, "4g.20gb": 2, "7g.40gb": 1}, 24},
	{"all alike", map[string]float64{"1g.5gb": 1, "2g.10gb": 1, "3g.20gb": 1, "4g.20gb": 1, "7g.40gb": 1}, 14},
	{"halves and less", map[string]float64{"1g.5gb": 3, "1g.10gb": 1, "2g.10gb": 3, "3g.20gb": 2}, 30},
}

// replay simulates random requests on a node of 8 A100 and counts those that are placed at once. The others are refused, because
// a queue would hide the difference. On average one arrives in each time unit.
func replay(p gpu.Profiles, place policy, load mix, seed uint64, requests int) (accepted int) {
	r := rand.New(rand.NewPCG(seed, 0x6d6967))
	type running struct {
		until float64
		on    int
		at    gpu.Placement
	}
	var total float64
	weights := make([]float64, len(p.GI))
	for i := range p.GI {
		weights[i] = load.weight[p.GI[i].Name]
		total += weights[i]
	}
	gpus := make([][]mig.Present, 8)
	var live []running
	now := 0.0
	for range requests {
		// The random numbers do not depend on the placements, so that every policy gets the same requests.
		now += r.ExpFloat64()
		draw, duration := r.Float64()*total, r.ExpFloat64()*load.duration
		live = slices.DeleteFunc(live, func(x running) bool {
			if x.until > now {
				return false
			}
			gpus[x.on] = slices.DeleteFunc(gpus[x.on], func(b mig.Present) bool { return b.Placement == x.at })
			return true
		})
		profile := 0
		for draw >= weights[profile] {
			draw -= weights[profile]
			profile++
		}
		on, at := place.place(p, gpus, profile)
		if on < 0 {
			continue
		}
		accepted++
		gpus[on] = append(gpus[on], mig.Present{Instance: gpu.Instance{ProfileID: p.GI[profile].ID, Placement: at}, InUse: true})
		live = append(live, running{now + duration, on, at})
	}
	return accepted
}

const (
	replaySeeds    = 20
	replayRequests = 2000
)

// replays is the mean number of placed requests over a number of seeds, by mix and policy.
func replays(seeds uint64) (map[string]map[string]float64, error) {
	b, err := board.Find("a100-40")
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]float64{}
	for _, load := range mixes {
		out[load.name] = map[string]float64{}
		for _, place := range policies {
			for seed := range seeds {
				out[load.name][place.name] += float64(replay(b.GPUProfiles(), place, load, seed, replayRequests)) / float64(seeds)
			}
		}
	}
	return out, nil
}
