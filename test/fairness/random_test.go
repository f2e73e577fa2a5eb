package fairness

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/test/enumeration"
)

// anyProgram draws what a process does.
func anyProgram(r *rand.Rand) Program {
	length := func(least, most time.Duration) time.Duration {
		return least + time.Duration(r.Int64N(int64(most-least)))
	}
	switch r.IntN(5) {
	case 0:
		return Program{Queue: length(5*ms, 400*ms), Jitter: 0.3 * r.Float64()}
	case 1:
		return Program{Work: length(2*ms, 60*ms), Think: length(5*ms, 200*ms)}
	case 2:
		return Program{Work: length(2*ms, 10*ms), Rate: 5 + 60*r.Float64()}
	case 3:
		return Program{Work: length(200*ms, 2*time.Second), Kernel: 5 * ms, Think: length(time.Second, 12*time.Second)}
	}
	return Program{Queue: length(20*ms, 100*ms), On: length(time.Second, 30*time.Second), Off: length(time.Second, 30*time.Second)}
}

// anyScenario draws two to four leases, which may come late, change, have several processes or low latency, on a GPU of any kind.
func anyScenario(r *rand.Rand) Scenario {
	var sc Scenario
	left := 100.0
	for n := 2 + r.IntN(3); n > 0; n-- {
		share := max(2, left/float64(n)*(0.3+1.4*r.Float64()))
		if n == 1 {
			share = max(2, left)
		}
		left -= share
		l := Load{Share: share, Program: anyProgram(r)}
		switch r.IntN(8) {
		case 0:
			l.Phases = []Phase{
				{5*time.Second + time.Duration(r.Int64N(int64(time.Minute))), anyProgram(r)},
				{5*time.Second + time.Duration(r.Int64N(int64(time.Minute))), anyProgram(r)},
			}
			l.Program = Program{}
		case 1:
			l.Processes = 2 + r.IntN(7)
		case 2:
			l.From = time.Duration(r.Int64N(int64(90 * time.Second)))
		case 3:
			l.LowLatency = l.Share < 60
		}
		sc.Loads = append(sc.Loads, l)
	}
	switch r.IntN(4) {
	case 0:
		sc.Switching = engine.Switching{Slice: 2 * ms}
	case 1:
		sc.Switching = engine.Switching{Slice: 2 * ms, Whole: true}
	}
	if r.IntN(5) == 0 {
		sc.Loads = append(
			sc.Loads,
			Load{Outside: true, Program: Program{Work: 5 * ms, Think: 30*ms + time.Duration(r.Int64N(int64(200*ms)))}},
		)
	}
	return sc
}

// TestNoShareIsShownThatAnyLoadLacks is TestNoShareIsShownThatAWindowLacks with loads that are drawn, on samplers and faults of all kinds:
// where an observation is missing, late or repeated a share is not shown as met for that.
func TestNoShareIsShownThatAnyLoadLacks(t *testing.T) {
	variants := slices.Concat(Variants(), faulty())
	for i := range 240 {
		if !enumeration.Runs(i, 8) {
			continue
		}
		r := rand.New(rand.NewPCG(uint64(i), 77))
		sc, v := anyScenario(r), variants[i%len(variants)]
		t.Run(fmt.Sprintf("%d/%s", i, v.Name), func(t *testing.T) {
			t.Parallel()
			for k, said := range Listen(sc, v, uint64(i)) {
				if wrong := Untrue(said); len(wrong) > 0 {
					t.Errorf("%d windows, first %v; %+v", len(wrong), wrong[0], sc.Loads[k])
				}
			}
		})
	}
}
