package mig

import (
	"math/bits"

	"github.com/gpushare/gpushare/gpu"
)

// Candidate is one GPU that an instance may be had on.
type Candidate struct {
	Profiles gpu.Profiles
	Present  []Present
}

// Pick finds the GPU and the place for one more instance, where nothing in use moves: one that is there and idle before
// one that is made, one that is made before one that others go for, and then where it takes the fewest of the placements
// that all profiles still had, and of equals on the GPU with the least room left, so that whole ones stay whole. (That
// order turned the fewest requests away in a replay of random ones.) at is -1 when no GPU has a place.
func Pick(list []Candidate, req Request) (at int, r Result) {
	at = -1
	var best [5]int
	for i, c := range list {
		present := make([]Present, len(c.Present))
		for j, b := range c.Present {
			b.Keepable = true
			present[j] = b
		}
		pr, err := newProblem(c.Profiles, present, []Request{req}, Options{additional: true})
		if err != nil {
			continue
		}
		s, ok := pr.solve([]int{1})
		if !ok {
			continue
		}
		closed, taken, free := pr.currentUse()
		creates := 0
		if s.cost.created > 0 {
			creates = 1
		}
		rank := [5]int{s.cost.destroyed, creates, s.cost.taken - taken, free, s.cost.closed - closed}
		if at < 0 || lessRank(rank, best) {
			at, best, r = i, rank, pr.result(s, 1)
		}
	}
	return at, r
}

// currentUse is what is closed and taken by what is there, and how many memory slices are free.
func (pr *problem) currentUse() (closed, taken, free int) {
	t := tally{of: make([]uint32, len(pr.p.GI))}
	var mask uint64
	for i, q := range pr.profile {
		mask |= pr.masks[i]
		if q >= 0 {
			t.count(pr.rules[q], 1)
			t.of[q]++
		}
	}
	closed, taken = (&search{problem: pr}).countClosed(&t, mask)
	return closed, taken, int(pr.p.Width) - bits.OnesCount64(mask)
}

func lessRank(a, b [5]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
