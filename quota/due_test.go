package quota

import (
	"math"
	"testing"
	"time"
)

// What a lease leaves of its share is what it would not use alone: not what a burst takes from it.
func TestWhatABurstTakesIsNotLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		loader float64 // what the samples say that it used
		due    float64 // to the burst: a third of what the loader does not need
	}{
		// A loader of 38 ms on the GPU and 62 ms on its host has 38 of 176 ms next to two others that always have work.
		{"a loader that gets less next to it", 0.216, (1 - 0.38) / 3},
		{"a loader that has its share and needs more", 0.33, 0.2},
		{"a service with little work", 0.032, (1 - 0.034) / 3},
		{"a lease without work", 0, 1.0 / 3},
	} {
		s := NewScheduler(Config{})
		s.SetMembers(0, []Member{
			{Lease: "burst", Grant: "burst", Share: 20, Active: true},
			{Lease: "loader", Grant: "loader", Share: 40, Active: true},
			{Lease: "training", Grant: "training", Share: 40, Active: true},
		})
		burst, loader := s.find("burst"), s.find("loader")
		burst.demand.class, loader.demand.class, s.find("training").demand.class = limited, limited, heavy
		s.stale = true
		s.refresh()
		s.phase = sliceRuns // The training has its slices meanwhile.
		for at := time.Duration(0); at < 5*time.Second; at += time.Second {
			s.last = at + time.Second
			busy := map[string]float64{"burst": (1 - c.loader) / 2, "loader": c.loader, "training": (1 - c.loader) / 2}
			s.observeWindows(at, s.last, busy)
			for _, m := range s.members {
				s.learnDemand(m, at, s.last, busy[m.Lease], 0)
			}
		}
		if s.shareOut(); math.Abs(burst.due-c.due) > 0.01 {
			t.Errorf("%s: %.3f of the time are due to the burst, want %.3f", c.name, burst.due, c.due)
		}
	}
}
