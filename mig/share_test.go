package mig

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

// This is a second, simple solver for compute instances that share GPU instances. It tries every division of the requested
// ones in every legal state of the device, and computes the cost by definition.

// dividedSlot is one instance of a brute-force state with the slices of its compute instances in falling order; {7} of 7 is
// a single one with all slices.
type dividedSlot struct {
	slot
	compute []uint32
}

// requestCount counts requests by profile and compute slices; all slices of the profile are a GPU instance.
type requestCount map[[2]int]int

func (w requestCount) key() string { return fmt.Sprint(w) }

// dividedStates calls f with every legal state that has exactly the requested instances.
func dividedStates(p gpu.Profiles, all [][]slot, want requestCount, f func([]dividedSlot)) {
	for _, state := range all {
		left := requestCount{}
		for k, n := range want {
			left[k] = n
		}
		var put func(i int, have []dividedSlot)
		put = func(i int, have []dividedSlot) {
			if i == len(state) {
				for _, n := range left {
					if n != 0 {
						return
					}
				}
				f(have)
				return
			}
			q := state[i].profile
			full := p.GI[q].Slices
			if k := [2]int{q, int(full)}; left[k] > 0 {
				left[k]--
				put(i+1, append(slices.Clip(have), dividedSlot{state[i], []uint32{full}}))
				left[k]++
			}
			var inside func(compute []uint32, most, space uint32)
			inside = func(compute []uint32, most, space uint32) {
				if len(compute) > 0 {
					put(i+1, append(slices.Clip(have), dividedSlot{state[i], slices.Clone(compute)}))
				}
				for sub := min(most, space); sub > 0; sub-- {
					if k := [2]int{q, int(sub)}; left[k] > 0 {
						left[k]--
						inside(append(slices.Clip(compute), sub), sub, space-sub)
						left[k]++
					}
				}
			}
			inside(nil, full-1, full)
		}
		put(0, nil)
	}
}

// stepInside is the distance of the placements of a compute instance by its slices, as 'nvidia-smi mig -lcipp' lists them for
// A100 in NVIDIA's MIG user guide: 1 at 0 to 6, 2 at 0, 2 and 4, 3 at 0 and 4, 4 and 7 at 0.
var stepInside = map[uint32]uint32{1: 1, 2: 2, 3: 4, 4: 4, 7: 8}

// reusable reports whether an existing instance is kept for a request, and whether it is complete.
func reusable(have []gpu.Placement, want []uint32, width uint32) (kept, complete bool) {
	missing := slices.Clone(want)
	taken := make([]bool, width)
	for _, h := range have {
		i := slices.Index(missing, h.Size)
		if i < 0 {
			return false, false
		}
		missing = slices.Delete(missing, i, i+1)
		for k := range h.Size {
			taken[h.Start+k] = true
		}
	}
	for _, l := range missing {
		found := false
		for start := uint32(0); start+l <= width && !found; start += stepInside[l] {
			if !slices.Contains(taken[start:start+l], true) {
				found = true
				for k := range l {
					taken[start+k] = true
				}
			}
		}
		if !found {
			return false, false
		}
	}
	return true, len(missing) == 0
}

// TestSharedAgainstBruteForce compares the cost of plans with brute force for random present instances and requests with
// compute instances that share.
func TestSharedAgainstBruteForce(t *testing.T) {
	for _, dev := range []struct {
		name string
		p    gpu.Profiles
	}{{"A30", a30()}, {"A100", classic()}, {"RTX", rtx()}} {
		all := states(dev.p)
		t.Run(dev.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { sharedAgainstBruteForce(t, dev.p, all) })
		})
	}
}

func sharedAgainstBruteForce(t *rapid.T, p gpu.Profiles, all [][]slot) {
	// divide draws compute instances for one GPU instance, with a published size.
	divide := func(q gpu.Profile) []uint32 {
		if q.Slices == 1 || rapid.Bool().Draw(t, "whole") {
			return []uint32{q.Slices}
		}
		var out []uint32
		for space := q.Slices; space > 0; {
			sub := uint32(rapid.IntRange(1, int(min(space, (q.Slices+1)/2))).Draw(t, "sub"))
			if !divides(&q, sub) {
				sub = 1
			}
			out, space = append(out, sub), space-sub
			if rapid.Bool().Draw(t, "enough") {
				break
			}
		}
		return out
	}
	s := idle(rapid.SampledFrom(all).Draw(t, "present"))
	present := presentOf(p, s)
	inside := make([][]gpu.Placement, len(present))
	for i, b := range s.present {
		var compute []gpu.ComputeInstance
		taken := uint64(0)
		for _, sub := range divide(p.GI[b.profile]) {
			for start := uint32(0); start+sub <= p.GI[b.profile].Slices; start += stepInside[sub] {
				at := gpu.Placement{Start: start, Size: sub}
				if maskOf(at)&taken == 0 && rapid.Bool().Draw(t, "here") {
					taken |= maskOf(at)
					compute = append(compute, gpu.ComputeInstance{Placement: at})
					inside[i] = append(inside[i], at)
					break
				}
			}
		}
		present[i].Compute = compute
		present[i].InUse = rapid.IntRange(0, 2).Draw(t, "in use") == 0
	}
	want := requestCount{}
	var names []string
	add := func(q int, sub uint32) {
		want[[2]int{q, int(sub)}]++
		name := p.GI[q].Name
		if sub != p.GI[q].Slices {
			name = fmt.Sprintf("%dc.%s", sub, name)
		}
		names = append(names, name)
	}
	if rapid.Bool().Draw(t, "as it is") {
		// Nearly the present layout, because plans that keep much are the interesting ones.
		for i, b := range s.present {
			for _, at := range inside[i] {
				add(b.profile, at.Size)
			}
		}
	} else {
		for _, x := range rapid.SampledFrom(all).Draw(t, "target") {
			for _, sub := range divide(p.GI[x.profile]) {
				add(x.profile, sub)
			}
		}
	}
	if q := rapid.IntRange(0, len(p.GI)-1).Draw(t, "one more"); rapid.Bool().Draw(t, "more") {
		add(q, divide(p.GI[q])[0])
	}
	slices.Sort(names)
	force := rapid.Bool().Draw(t, "force")

	var best cost
	found := false
	dividedStates(p, all, want, func(target []dividedSlot) {
		c := cost{}
		kept := make([]bool, len(present))
		for _, x := range target {
			at := slices.Index(s.present, x.slot)
			if at >= 0 {
				ok, complete := reusable(inside[at], x.compute, p.GI[x.profile].Slices)
				if ok {
					kept[at] = true
					if !complete {
						c.completed++
					}
					continue
				}
			}
			c.created += p.GI[x.profile].Memory
		}
		for i := range present {
			if kept[i] {
				continue
			}
			c.destroyed++
			if present[i].InUse {
				if c.disturbed++; !force {
					return
				}
			}
		}
		var state []slot
		for _, x := range target {
			state = append(state, x.slot)
		}
		for i, q := range p.GI {
			open := 0
			for _, place := range q.Placements {
				if legal(p, append(slices.Clip(state), slot{i, place.Start})) {
					open++
				}
			}
			if open == 0 {
				c.closed++
			}
			c.taken += len(q.Placements) - open
		}
		if !found || c.compare(best, true) < 0 {
			best, found = c, true
		}
	})

	r, err := Plan(p, present, Requests(names...), Options{Force: force})
	if found != (err == nil) {
		t.Fatalf("%v: %v, brute force finds %+v %v", names, err, best, found)
	}
	if err != nil {
		return
	}
	got := costOf(p, r)
	got.completed = len(r.Complete)
	if got != best {
		t.Fatalf("%v to %v: cost %+v, brute force finds %+v\n%+v", present, names, got, best, r)
	}
	// Every request has an instance with its compute instance, and none is counted twice.
	has := requestCount{}
	seen := map[gpu.Placement]bool{}
	for _, l := range r.Layout {
		if seen[l.Placement] {
			continue
		}
		seen[l.Placement] = true
		q := slices.IndexFunc(p.GI, func(q gpu.Profile) bool { return q.ID == l.ProfileID })
		if len(l.Compute) == 0 {
			has[[2]int{q, int(l.Slices)}]++
		}
		for _, c := range l.Compute {
			has[[2]int{q, int(c.Slices)}]++
		}
	}
	if has.key() != want.key() {
		t.Fatalf("%v is placed as %v", names, r.Layout)
	}
}
