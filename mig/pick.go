package mig

import (
	"math/bits"

	"github.com/gpushare/gpushare/gpu"
)

// Candidate is one GPU that may get the instance.
type Candidate struct {
	Profiles gpu.Profiles
	Present  []Present
}

// Pick finds the GPU and the placement for one more instance without destroying one that is in use. It prefers an idle
// instance that exists, then a new instance, then a new instance for which idle ones are destroyed. Of equals it takes the
// one that blocks the fewest free placements of all profiles, then the GPU with the least free memory slices, so that
// empty GPUs are kept empty. (Of the orders that were compared in a replay of random requests, this one refused the
// fewest.) at is -1 when no GPU has a placement.
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

// currentUse returns the counts of countClosed for the existing instances, and the number of free memory slices.
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
