package fairness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/quota"
	"github.com/gpushare/gpushare/test/enumeration"
)

// TestNoShareIsShownThatAWindowLacks walks all windows of ten seconds of what the virtual hardware did for each lease, with every
// scenario and every sampler: none lacks more of a share than is said, while the share is said to be met, for longer than a window.
func TestNoShareIsShownThatAWindowLacks(t *testing.T) {
	enumeration.Long(t)
	seeds := []uint64{1, 3}
	cell := 0
	for _, sc := range append(Scenarios(), crowds()...) {
		for _, v := range Variants() {
			if cell++; cell%enumeration.Stride(7) != 0 {
				continue
			}
			t.Run(sc.Name+"/"+v.Name, func(t *testing.T) {
				t.Parallel()
				for _, seed := range seeds {
					for i, said := range Listen(sc, v, seed) {
						t.Logf("load %d: %s", i, summary(said))
						if wrong := Untrue(said); len(wrong) > 0 {
							t.Errorf("seed %d: %d windows, first %v", seed, len(wrong), wrong[0])
						}
					}
				}
			})
		}
	}
}

// part is the percentage of the time in which one of some states is shown, from 20 s after the last lease came.
func part(said []Said, from time.Duration, states ...quota.State) float64 {
	n, all := 0, 0
	for i := range said {
		if said[i].At < from+20*time.Second {
			continue
		}
		all++
		if slices.Contains(states, said[i].Verdict.State) {
			n++
		}
	}
	return 100 * float64(n) / float64(max(all, 1))
}

// TestSharesAreShownAsTheyAre checks that what is said is more than that it is not known: shares that leases have are shown as met, those that
// they lack as not met with the reason, and with samples that are too few neither is shown without being certain.
func TestSharesAreShownAsTheyAre(t *testing.T) {
	usual := []int{0, 1, 2, 3, 4, 5, 8, 9}
	late := 40 * time.Second
	const flooded = "low latency: 50/50, a flood of requests and training with three processes"
	for _, c := range []struct {
		scenario string
		load     int
		variants []int
		states   []quota.State
		least    float64
		from     time.Duration
		reason   string
		always   bool // the state counts with this reason only
	}{
		{scenario: "30/70, queues 50 ms", load: 0, variants: usual, states: []quota.State{quota.Met}, least: 95},
		{scenario: "30/70, queues 50 ms", load: 1, variants: []int{6, 7}, states: []quota.State{quota.Met}, least: 80},
		{scenario: "50/50, synchronous 1 ms and queue 50 ms", load: 0, variants: usual, states: []quota.State{quota.Met}, least: 95},
		{scenario: "20/80, inference and training", load: 0, variants: usual, states: []quota.State{quota.Less, quota.Met}, least: 75},
		{scenario: "20/80, inference and training", load: 1, variants: usual, states: []quota.State{quota.Met}, least: 95},
		{
			scenario: "55/45, 60 % of the time and training with eight processes",
			load:     0,
			variants: usual,
			states:   []quota.State{quota.Unmet},
			least:    50,
			reason:   "8 processes of others",
		},
		{
			scenario: flooded,
			load:     0,
			variants: []int{6},
			states:   []quota.State{quota.Unmeasured},
			least:    90,
			reason:   "does not report the utilisation of the GPU over time",
			always:   true,
		},
		{scenario: flooded, load: 0, variants: []int{2, 4, 5, 13}, states: []quota.State{quota.Met}, least: 90},
		{
			scenario: flooded,
			load:     1,
			variants: []int{1, 8, 13, 15},
			states:   []quota.State{quota.Unmet},
			least:    50,
			reason:   "waits for a lease that runs next to the others",
			always:   true,
		},
		{
			scenario: "50/50, data loader 60+40 ms and training",
			load:     0,
			variants: usual,
			states:   []quota.State{quota.Unmet},
			least:    70,
			reason:   "next to the others",
		},
		{
			scenario: "30/70, queues 50 ms",
			load:     0,
			variants: []int{10, 11, 12},
			states:   []quota.State{quota.Unmeasured, quota.Unmet},
			least:    100,
			reason:   "the driver samples this GPU every",
		},
		{
			scenario: "30/70, a service that joins a training with eight processes",
			load:     0,
			variants: usual,
			states:   []quota.State{quota.Unmet, quota.Unmeasured},
			least:    100,
			from:     late,
		},
	} {
		for _, i := range c.variants {
			v := Variants()[i]
			t.Run(fmt.Sprintf("%s/%d/%s", c.scenario, c.load, v.Name), func(t *testing.T) {
				said := Listen(scenarioOf(t, c.scenario), v, 2)[c.load]
				counted := said
				if c.always {
					counted = withReason(said, c.reason)
				}
				if got := part(counted, c.from, c.states...); got < c.least {
					t.Errorf("%v is shown for %.0f %% of the time, want %.0f: %s", c.states, got, c.least, summary(said))
				}
				found := false
				for k := range said {
					found = found || slices.Contains(c.states, said[k].Verdict.State) && strings.Contains(said[k].Verdict.Reason, c.reason)
				}
				if !found {
					t.Errorf("no reason has %q; the last: %v", c.reason, said[len(said)-1])
				}
			})
		}
	}
}

// withReason is the same with no state where the reason is another.
func withReason(said []Said, reason string) []Said {
	out := slices.Clone(said)
	for i := range out {
		if !strings.Contains(out[i].Verdict.Reason, reason) {
			out[i].Verdict.State = ""
		}
	}
	return out
}

func scenarioOf(t *testing.T, name string) Scenario {
	t.Helper()
	for _, sc := range append(Scenarios(), crowds()...) {
		if sc.Name == name {
			return sc
		}
	}
	t.Fatalf("there is no scenario %q", name)
	return Scenario{}
}

// summary counts what is said.
func summary(said []Said) string {
	counts := map[quota.State]int{}
	for i := range said {
		counts[said[i].Verdict.State]++
	}
	var out []string
	for _, s := range []quota.State{quota.Met, quota.Less, quota.Unmet, quota.Unmeasured} {
		out = append(out, fmt.Sprintf("%s %d", s, counts[s]))
	}
	return strings.Join(out, ", ")
}
