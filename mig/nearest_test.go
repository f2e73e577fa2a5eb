package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
)

// largestByTrial is a second, simple way to the largest part: it plans every part of the requests, from the largest to the
// smallest. It shares the search for one plan with the planner, which other tests compare with brute force.
func largestByTrial(pr *problem) (part, bool) {
	var best part
	found := false
	counts := make([]int, len(pr.classes))
	var try func(i int)
	try = func(i int) {
		if i < len(counts) {
			for n := range len(pr.classes[i].requests) + 1 {
				counts[i] = n
				try(i + 1)
			}
			return
		}
		x := part{counts: make([]uint16, len(counts))}
		for c, n := range counts {
			x.n += n
			x.memory += uint64(n) * pr.memoryOf(&pr.classes[c])
			x.counts[c] = uint16(n)
		}
		if found && x.compare(&best) <= 0 {
			return
		}
		if _, ok := pr.solveKeepingPinned(counts); ok {
			best, found = x, true
		}
	}
	try(0)
	return best, found
}

// requestFor draws a request: a profile, a compute instance that shares one, at a placement or anywhere, or properties.
func requestFor(t *rapid.T, p gpu.Profiles) Request {
	q := rapid.SampledFrom(p.GI).Draw(t, "profile")
	req := Request{Name: q.Name}
	if rapid.IntRange(0, 5).Draw(t, "by properties") == 0 {
		req = Request{Slices: q.Slices, Attributes: q.Attributes}
		if rapid.Bool().Draw(t, "by memory") {
			req.Memory = q.Memory
		}
	} else if sub := rapid.Uint32Range(0, (q.Slices+1)/2).Draw(t, "sub"); divides(&q, sub) && sub != 0 {
		req.Name = fmt.Sprintf("%dc.%s", sub, q.Name)
	}
	if rapid.IntRange(0, 3).Draw(t, "at a placement") == 0 {
		at := rapid.SampledFrom(q.Placements).Draw(t, "at")
		req.At = &at
	}
	return req
}

// The largest part that fits is that of a search over all parts, for few requests on every board, with instances that are in
// use, foreign, keepable, pinned and divided.
func TestLargestPartAgainstTrial(t *testing.T) {
	for _, dev := range grids() {
		all := states(dev.p)
		t.Run(dev.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s := idle(rapid.SampledFrom(all).Draw(t, "present"))
				present := presentOf(dev.p, s)
				for i := range present {
					b := &present[i]
					flags := rapid.IntRange(0, 15).Draw(t, "flags")
					b.InUse, b.Foreign, b.Keepable, b.Pinned = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags == 8
					if flags&3 == 3 {
						b.Compute = []gpu.ComputeInstance{{Placement: gpu.Placement{Size: 1}}}
					}
				}
				var requests []Request
				for range rapid.IntRange(0, 4).Draw(t, "kinds") {
					requests = append(requests, slices.Repeat([]Request{requestFor(t, dev.p)}, rapid.IntRange(1, 4).Draw(t, "times"))...)
				}
				pr, err := newProblem(
					dev.p, present, requests, Options{Force: rapid.Bool().Draw(t, "force"), TakeForeign: rapid.Bool().Draw(t, "take")},
				)
				if err != nil {
					t.Fatal(err)
				}
				want, ok := largestByTrial(pr)
				got := pr.largestPart(pr.counts(), pr.keepable|pr.pinned)
				if (got != nil) != ok || ok && got.compare(&want) != 0 {
					t.Fatalf("%v next to %+v: got %+v, trial finds %+v %v", requests, present, got, want, ok)
				}
			})
		})
	}
}

// kinds lists every different request for a board: names, compute instances that share, placements, properties.
func kinds(p gpu.Profiles) []Request {
	var out []Request
	for i := range p.GI {
		q := &p.GI[i]
		named := []Request{
			{Name: q.Name},
			{Slices: q.Slices, Attributes: q.Attributes},
			{Slices: q.Slices, Memory: q.Memory, Attributes: q.Attributes},
		}
		for sub := uint32(1); sub < q.Slices; sub++ {
			if divides(q, sub) {
				named = append(named, Request{Name: fmt.Sprintf("%dc.%s", sub, q.Name)})
			}
		}
		for _, req := range named {
			out = append(out, req)
			for _, at := range q.Placements {
				req.At = &at
				out = append(out, req)
			}
		}
	}
	return out
}

// layoutOf draws requests that are together one layout of an empty GPU, in different words.
func layoutOf(t *rapid.T, p gpu.Profiles, every []Request) []Request {
	var out []Request
	var have []Present
	for range rapid.IntRange(1, 30).Draw(t, "instances") {
		q := rapid.SampledFrom(p.GI).Draw(t, "profile")
		at := rapid.SampledFrom(q.Placements).Draw(t, "at")
		more, err := AddPresent(p, have, q.Name, at.Start, false)
		if err != nil {
			continue
		}
		have = more
		var can []Request
		for _, req := range every {
			if fit, err := Match(p, req); err == nil && slices.ContainsFunc(fit, func(f gpu.Profile) bool { return f.ID == q.ID }) &&
				(req.At == nil || *req.At == at) {
				can = append(can, req)
			}
		}
		req := rapid.SampledFrom(can).Draw(t, "as")
		out = append(out, req)
		n, err := ParseProfile(req.Name)
		for space := n.Slices - n.Compute; err == nil && n.Compute != 0 && space > 0; space -= n.Compute {
			n.Compute = rapid.Uint32Range(1, min(space, n.Slices/2)).Draw(t, "sub")
			req.Name = n.String()
			out = append(out, req)
		}
	}
	return out
}

// The work of a plan is bounded on every board, whatever is requested: a plan and the nearest layout are found, or proved not
// to exist, in a tenth of the steps that are allowed.
func TestPlanIsBounded(t *testing.T) {
	all, err := board.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		t.Run(b.Short, func(t *testing.T) {
			p := b.GPUProfiles()
			every := kinds(p)
			var most, mostNearest int
			rapid.Check(t, func(t *rapid.T) {
				var requests []Request
				if rapid.Bool().Draw(t, "a layout") {
					requests = layoutOf(t, p, every)
				}
				anywhere := rapid.Bool().Draw(t, "anywhere")
				times := rapid.SampledFrom([]int{1, 2, 3, 4, 8, 1000}).Draw(t, "times")
				for _, req := range rapid.Permutation(every).Draw(t, "order")[:rapid.SampledFrom([]int{0, 1, 4, 16, len(every)}).Draw(t, "kinds")] {
					if !anywhere || req.At == nil {
						requests = append(requests, slices.Repeat([]Request{req}, rapid.IntRange(1, times).Draw(t, "n"))...)
					}
				}
				var present []Present
				for range rapid.IntRange(0, 4).Draw(t, "present") {
					q := rapid.SampledFrom(p.GI).Draw(t, "of")
					if more, err := AddPresent(
						p, present, q.Name, rapid.SampledFrom(q.Placements).Draw(t, "start").Start, rapid.Bool().Draw(t, "in use"),
					); err == nil {
						present = more
					}
				}
				pr, err := newProblem(p, present, requests, Options{Force: rapid.Bool().Draw(t, "force")})
				if err != nil {
					t.Fatal(err)
				}
				pr.solve(pr.counts())
				most = max(most, pr.work.steps)
				pr.nearest()
				mostNearest = max(mostNearest, pr.work.steps)
			})
			if most > searchSteps/10 || mostNearest > nearestSteps/10 {
				t.Errorf(
					"%d steps for a plan and %d for the nearest layout; %d and %d are allowed", most, mostNearest, searchSteps,
					nearestSteps,
				)
			}
			t.Logf("%d steps for a plan, %d for the nearest layout", most, mostNearest)
		})
	}
}

// Many kinds of compute instances that share GPU instances do not fit together. What fits is found all the same, in few steps.
func TestNearestOfManySharedInstances(t *testing.T) {
	var names []string
	for _, q := range a100().GI {
		for sub := uint32(1); sub < q.Slices; sub++ {
			if divides(&q, sub) {
				names = append(names, slices.Repeat([]string{fmt.Sprintf("%dc.%s", sub, q.Name)}, 4)...)
			}
		}
	}
	names = append(names, "1g.5gb", "1g.10gb", "1g.5gb+me")
	pr, err := newProblem(a100(), nil, Requests(names...), Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, cut := pr.nearest()
	const want = "4 × 1c.4g.20gb, 3 × 1c.3g.20gb"
	if listText(got) != want || cut != 0 || pr.work.steps > 5000 {
		t.Errorf("%d requests: %s is the nearest after %d steps (cut %d), want %s", len(names), listText(got), pr.work.steps, cut, want)
	}
}

// A search that needs too many steps ends, and a plan that was cancelled is an error of the context.
func TestTheSearchEnds(t *testing.T) {
	// A grid that no board has, with more profiles than a search can compare.
	p := gpu.Profiles{Width: 64}
	var want []Request
	for i := range uint32(24) {
		q := profile(i, fmt.Sprintf("%dg.%dgb", i+1, i+1), i+1, 1024, 3, i%7+1)
		for start := uint32(0); start+i%7+1 <= p.Width; start++ {
			q.Placements = append(q.Placements, gpu.Placement{Start: start, Size: i%7 + 1})
		}
		p.GI = append(p.GI, q)
		want = append(want, slices.Repeat([]Request{{Name: q.Name}}, 3)...)
	}
	var e *Infeasible
	_, err := Plan(p, nil, want, Options{})
	if !errors.As(err, &e) || e.StoppedAfter < nearestSteps ||
		!strings.Contains(err.Error(), fmt.Sprintf("stopped looking for the nearest layout after %d steps", e.StoppedAfter)) {
		t.Errorf("got %v", err)
	}
	var complex *TooComplex
	if _, err := Plan(p, nil, want[:15], Options{}); !errors.As(err, &complex) || complex.Steps != searchSteps {
		t.Errorf("got %v", err)
	}
	done := make(chan struct{})
	close(done)
	if _, err := Plan(p, nil, want, Options{Done: done}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled plan: %v", err)
	}
}

// A spec of 1 MiB may request one GPU's instances a hundred thousand times: the steps do not grow with the requests.
func TestManyRequestsTakeNoMoreSteps(t *testing.T) {
	for _, p := range []gpu.Profiles{a30(), a100(), rtx()} {
		var some []Request
		for _, req := range kinds(p) {
			some = append(some, slices.Repeat([]Request{req}, 64)...)
		}
		var steps []int
		for _, times := range []int{1, 10} {
			pr, err := newProblem(p, nil, slices.Repeat(some, times), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, cut := pr.nearest(); cut != 0 {
				t.Errorf("stopped after %d steps", cut)
			}
			steps = append(steps, pr.work.steps)
		}
		if steps[0] != steps[1] {
			t.Errorf("%d steps, and %d for ten times as many requests", steps[0], steps[1])
		}
	}
}
