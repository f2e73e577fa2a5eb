package mig

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// This is a second, simple solver to compare with. It lists every legal state of a device and takes the cheapest that has
// the requested counts. It shares only the profiles with the planner.

// slot is one instance of a brute-force state.
type slot struct {
	profile int
	start   uint32
}

// states lists every legal state of a device, with the empty one.
func states(p gpu.Profiles) [][]slot {
	var all []slot
	for i, q := range p.GI {
		for _, place := range q.Placements {
			all = append(all, slot{i, place.Start})
		}
	}
	var out [][]slot
	var grow func(from int, have []slot)
	grow = func(from int, have []slot) {
		out = append(out, slices.Clone(have))
		for i := from; i < len(all); i++ {
			if next := append(slices.Clip(have), all[i]); legal(p, next) {
				grow(i+1, next)
			}
		}
	}
	grow(0, nil)
	return out
}

// legal checks a state against the documented rules.
func legal(p gpu.Profiles, state []slot) bool {
	taken := make([]bool, p.Width)
	me, all, plain := 0, 0, 0
	of := map[int]uint32{}
	for _, s := range state {
		q := p.GI[s.profile]
		for k := range q.Placements[0].Size {
			if taken[s.start+k] {
				return false
			}
			taken[s.start+k] = true
		}
		if of[s.profile]++; of[s.profile] > q.Max {
			return false
		}
		switch {
		case slices.Contains(q.Attributes, "me"):
			me++
			plain++
		case slices.Contains(q.Attributes, "me.all"):
			all++
		case !slices.Contains(q.Attributes, "-me"):
			plain++
		}
	}
	return me <= 1 && all <= 1 && (all == 0 || plain == 0)
}

// situation is the input of a plan: the present instances with flags by index, and the authority.
type situation struct {
	present                  []slot
	inUse, foreign, keepable []bool
	force, takeForeign       bool
}

// stateCost is the cost of changing to a state, by definition; ok is false when it is not allowed.
func stateCost(p gpu.Profiles, s situation, target []slot) (c cost, ok bool) {
	for i, b := range s.present {
		if slices.Contains(target, b) {
			continue
		}
		c.destroyed++
		if s.inUse[i] {
			c.disturbed++
		}
		if !s.force && (s.inUse[i] || s.foreign[i] && !s.takeForeign) {
			return c, false
		}
	}
	for _, t := range target {
		if !slices.Contains(s.present, t) {
			c.created += p.GI[t.profile].Memory
		}
	}
	for i, q := range p.GI {
		open := 0
		for _, place := range q.Placements {
			if legal(p, append(slices.Clip(target), slot{i, place.Start})) {
				open++
			}
		}
		if open == 0 {
			c.closed++
		}
		c.taken += len(q.Placements) - open
	}
	return c, true
}

// bruteForce finds the cheapest state that has the requested counts, with extra instances only where they may be kept.
func bruteForce(p gpu.Profiles, all [][]slot, s situation, counts map[int]int) (cost, bool) {
	var best cost
	found := false
	for _, state := range all {
		// Split the state into the requested instances and the extras that are kept.
		left := map[int]int{}
		for _, t := range state {
			left[t.profile]++
		}
		fits, extra := true, 0
		for q, n := range counts {
			if left[q] < n {
				fits = false
			}
			left[q] -= n
		}
		for _, n := range left {
			extra += n
		}
		if !fits {
			continue
		}
		// The extras of each profile must be among the present instances that may be kept.
		may := map[int]int{}
		for i, b := range s.present {
			if slices.Contains(state, b) && (s.keepable[i] || s.foreign[i] && !s.takeForeign) {
				may[b.profile]++
			}
		}
		for q, n := range left {
			if n > may[q] {
				fits = false
			}
		}
		if !fits {
			continue
		}
		c, ok := stateCost(p, s, state)
		if ok && (!found || c.compare(best, true) < 0) {
			best, found = c, true
		}
	}
	return best, found
}
