package mig

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

// TestRequestByProperties checks that requests by properties cost as little as the best choice of profile names for them.
func TestRequestByProperties(t *testing.T) {
	for _, dev := range grids() {
		all := states(dev.p)
		t.Run(dev.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := dev.p
				s := idle(rapid.SampledFrom(all).Draw(t, "present"))
				for i := range s.present {
					s.inUse[i] = rapid.IntRange(0, 3).Draw(t, "in use") == 0
				}
				present := presentOf(p, s)
				o := Options{Force: rapid.Bool().Draw(t, "force")}
				var requests []Request
				for range rapid.IntRange(1, 4).Draw(t, "requests") {
					q := rapid.SampledFrom(p.GI).Draw(t, "profile")
					req := Request{Slices: q.Slices, Attributes: q.Attributes}
					switch rapid.IntRange(0, 2).Draw(t, "how") {
					case 0:
						req.Memory = q.Memory - 1<<20
					case 1:
						req = Request{Name: q.Name}
					}
					requests = append(requests, req)
				}
				var best cost
				found := false
				var name func(i int, byName []Request)
				name = func(i int, byName []Request) {
					if i == len(requests) {
						if r, err := Plan(p, present, byName, o); err == nil {
							if c := costOf(p, r); !found || c.compare(best, true) < 0 {
								best, found = c, true
							}
						}
						return
					}
					fit, err := Match(p, requests[i])
					if err != nil {
						t.Fatal(err)
					}
					for _, q := range fit {
						name(i+1, append(byName[:i:i], Request{Name: q.Name}))
					}
				}
				name(0, nil)
				r, err := Plan(p, present, requests, o)
				if found != (err == nil) {
					t.Fatalf("%v: %v, by names %+v %v", requests, err, best, found)
				}
				if err != nil {
					return
				}
				if got := costOf(p, r); got != best {
					t.Fatalf("%v: cost %+v, by names %+v", requests, got, best)
				}
				for i, l := range r.Layout {
					fit, err := Match(p, requests[i])
					if err != nil || !containsID(fit, l.ProfileID) {
						t.Fatalf("%v is placed as %v", requests[i], l)
					}
				}
			})
		})
	}
}

func containsID(list []gpu.Profile, id uint32) bool {
	for i := range list {
		if list[i].ID == id {
			return true
		}
	}
	return false
}

// TestPlanIgnoresInputOrder checks that the order of the present instances and of the requests does not matter.
func TestPlanIgnoresInputOrder(t *testing.T) {
	p := a100()
	all := states(p)
	rapid.Check(t, func(t *rapid.T) {
		present := presentOf(p, idle(rapid.SampledFrom(all).Draw(t, "present")))
		target := map[int]int{}
		for _, x := range rapid.SampledFrom(all).Draw(t, "target") {
			target[x.profile]++
		}
		requests := requestsFor(p, target)
		first, err := Plan(p, present, requests, Options{})
		if err != nil {
			t.Fatal(err)
		}
		second, err := Plan(
			p, rapid.Permutation(present).Draw(t, "order"), rapid.Permutation(requests).Draw(t, "order of requests"), Options{},
		)
		if err != nil {
			t.Fatal(err)
		}
		if !SameLayout(first.After(), second.After()) || len(first.Destroy) != len(second.Destroy) {
			t.Fatalf("%v and %v", first.After(), second.After())
		}
	})
}
