package mig

import (
	"math/bits"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// Fragmentation says what the free room of a GPU is worth, and what it would be worth if idle instances lay elsewhere.
type Fragmentation struct {
	Free uint32 // memory slices that nothing is on
	// Score is 0 when moving gains nothing, and 1 when nothing can be placed now and something could: of the profiles that
	// could be placed once more if idle instances moved, the part that cannot be now.
	Score    float64
	Profiles []Fit // those that could be placed at all beside what is there, in the order of the device
}

// Fit is how many more of one profile fit.
type Fit struct {
	Profile gpu.Profile
	Now     int // as everything lies
	Moved   int // if idle instances are moved; at least Now
	// Moves is the least that frees room for one more than now. Empty when nothing would.
	Moves []Move
}

// Move is one idle instance that is destroyed and made again elsewhere.
type Move struct {
	From, To Placed
}

// Fragment computes the fragmentation. What is in use, foreign or pinned is not moved; nothing is ever given up.
func Fragment(p gpu.Profiles, present []Present) (Fragmentation, error) {
	pr, err := newProblem(p, present, nil, Options{})
	if err != nil {
		return Fragmentation{}, err
	}
	f := Fragmentation{}
	mask := uint64(0)
	for _, m := range pr.masks {
		mask |= m
	}
	f.Free = p.Width - uint32(bits.OnesCount64(mask))
	could, can := 0, 0
	for i := range p.GI {
		q := &p.GI[i]
		fit := Fit{Profile: *q}
		for fit.Now < pr.maxInstances(q) {
			if _, err := Plan(p, keptInPlace(present), repeated(q, fit.Now+1), Options{additional: true}); err != nil {
				break
			}
			fit.Now++
		}
		for fit.Moved = fit.Now; fit.Moved < pr.maxInstances(q); fit.Moved++ {
			moves, ok := movesFor(p, present, q, fit.Moved+1)
			if !ok {
				break
			}
			if fit.Moved == fit.Now {
				fit.Moves = moves
			}
		}
		if fit.Moved == 0 {
			continue
		}
		f.Profiles = append(f.Profiles, fit)
		could++
		if fit.Now > 0 {
			can++
		}
	}
	if could > 0 {
		f.Score = 1 - float64(can)/float64(could)
	}
	return f, nil
}

// keptInPlace is what is there with none of it to be moved, given up or handed out.
func keptInPlace(present []Present) []Present {
	out := slices.Clone(present)
	for i := range out {
		out[i].Keepable, out[i].InUse = true, true
	}
	return out
}

// repeated asks for n instances of a profile.
func repeated(q *gpu.Profile, n int) []Request {
	return slices.Repeat([]Request{{Name: q.Name}}, n)
}

// movesFor finds the fewest idle instances to move for n more of a profile.
func movesFor(p gpu.Profiles, present []Present, q *gpu.Profile, n int) ([]Move, bool) {
	var requests []Request
	movable := slices.Clone(present)
	for i, b := range present {
		movable[i].Keepable = false
		if b.InUse || b.Foreign || b.Pinned {
			// It stays without being asked for.
			movable[i].Keepable, movable[i].InUse = true, true
			continue
		}
		placed := placedOf(p, b.Instance)
		requests = append(requests, Request{Name: placed.Name, Compute: withoutPlacements(placed.Compute)})
	}
	kept := len(requests)
	r, err := Plan(p, movable, append(requests, repeated(q, n)...), Options{additional: true})
	if err != nil {
		return nil, false
	}
	created := slices.Clone(r.Create)
	var moves []Move
	for _, b := range r.Destroy {
		from := placedOf(p, b.Instance)
		i := slices.IndexFunc(created, func(x Placed) bool {
			return x.ProfileID == from.ProfileID && sameCompute(withoutPlacements(x.Compute), withoutPlacements(from.Compute))
		})
		if i < 0 {
			return nil, false // Not one of those that were there: it was asked for with others in one instance.
		}
		moves = append(moves, Move{from, created[i]})
		created = slices.Delete(created, i, i+1)
	}
	return moves, kept+n == len(r.Layout)
}

// withoutPlacements leaves it to the driver where compute instances lie inside.
func withoutPlacements(list []gpu.NewCompute) []gpu.NewCompute {
	out := largestFirst(list)
	for i := range out {
		out[i].Placement = nil
	}
	return out
}
