package mig

import (
	"math/bits"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// Fragmentation compares what fits on a GPU now with what would fit if idle instances were moved.
type Fragmentation struct {
	Free uint32 // free memory slices
	// Score is, of the profiles that could be placed once more if idle instances were moved, the part that cannot be placed
	// now. 0: moving gains nothing. 1: nothing can be placed without moving.
	Score    float64
	Profiles []Fit // those that could be placed, after moves where needed, in the order of the device
}

// Fit is how many more instances of one profile fit.
type Fit struct {
	Profile gpu.Profile
	Now     int // without moves
	Moved   int // with moves of idle instances; at least Now
	// Moves are the fewest moves after which one more than Now fits. Empty when there are none.
	Moves []Move
}

// Move is one idle instance that is destroyed and created again at another placement.
type Move struct {
	From, To Placed
}

// Fragment computes the fragmentation. Instances in use, foreign and pinned ones are not moved, and no instance is lost.
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

// keptInPlace returns the instances marked so that none of them is moved, destroyed or given to a request.
func keptInPlace(present []Present) []Present {
	out := slices.Clone(present)
	for i := range out {
		out[i].Keepable, out[i].InUse = true, true
	}
	return out
}

// repeated requests n instances of a profile.
func repeated(q *gpu.Profile, n int) []Request {
	return slices.Repeat([]Request{{Name: q.Name}}, n)
}

// movesFor finds the fewest moves of idle instances after which n more of a profile fit.
func movesFor(p gpu.Profiles, present []Present, q *gpu.Profile, n int) ([]Move, bool) {
	var requests []Request
	movable := slices.Clone(present)
	for i, b := range present {
		movable[i].Keepable = false
		if b.InUse || b.Foreign || b.Pinned {
			// It is kept without a request.
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
			return nil, false // compute instances of several instances were put into one: that is not a move
		}
		moves = append(moves, Move{from, created[i]})
		created = slices.Delete(created, i, i+1)
	}
	return moves, kept+n == len(r.Layout)
}

// withoutPlacements leaves the placements of compute instances to the driver.
func withoutPlacements(list []gpu.NewCompute) []gpu.NewCompute {
	out := largestFirst(list)
	for i := range out {
		out[i].Placement = nil
	}
	return out
}
