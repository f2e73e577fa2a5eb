package fairness

import (
	"strings"
	"testing"
	"time"
)

// lowLatencyScenario returns the scenario of a name.
func lowLatencyScenario(t *testing.T, name string) Scenario {
	t.Helper()
	for _, sc := range lowLatency() {
		if strings.HasSuffix(sc.Name, name) {
			return sc
		}
	}
	t.Fatalf("there is no scenario %q", name)
	return Scenario{}
}

// plain is the same without low latency, and with a cap: such leases have slices.
func plain(sc Scenario) Scenario {
	sc.Loads = append([]Load(nil), sc.Loads...)
	for i := range sc.Loads {
		sc.Loads[i].LowLatency, sc.Loads[i].Cap = false, 0.99
	}
	return sc
}

// TestLowLatencyIsNotFrozen checks that a lease with low latency is not frozen while it uses less than its share, from its start on: not
// even to measure it. With slices it is.
func TestLowLatencyIsNotFrozen(t *testing.T) {
	for _, sc := range lowLatency() {
		if strings.Contains(sc.Name, "flood") || strings.Contains(sc.Name, "whole kernels of 200 ms") {
			continue
		}
		t.Run(sc.Name, func(t *testing.T) {
			t.Parallel()
			for _, v := range Variants() {
				f := Run(sc, v, Enforced, 1)
				for i, l := range sc.Loads {
					if l.LowLatency && f.Usage[i].Frozen != 0 {
						t.Errorf("%s: load %d was frozen for %v", v.Name, i, f.Usage[i].Frozen)
					}
				}
			}
			if f := Run(plain(sc), Variants()[0], Enforced, 1); f.Usage[0].Frozen < time.Second {
				t.Errorf("with slices it was frozen for %v only: this scenario shows nothing", f.Usage[0].Frozen)
			}
		})
	}
}

// TestOthersWaitForLowLatency checks that trainings wait when they keep a service from its share, and that they have theirs: side by side
// the requests of this service wait longer each minute.
func TestOthersWaitForLowLatency(t *testing.T) {
	sc := lowLatencyScenario(t, "60/20/20, 50 requests/s of 10 ms and two trainings")
	for _, v := range []Variant{Variants()[0], Variants()[6]} { // with the series, and without it
		free, f := Measure(sc, v, SideBySide, 2), Measure(sc, v, Enforced, 2)
		if free.Latency[0].P99 < 10*time.Second || f.Latency[0].P99 > time.Second {
			t.Errorf("%s: p99 of a request is %v, side by side %v", v.Name, f.Latency[0].P99, free.Latency[0].P99)
		}
		for i := 1; i <= 2; i++ {
			if f.Of[i] < 18.5 {
				t.Errorf("%s: training %d has %.1f %% of the time, its share is 20", v.Name, i, f.Of[i])
			}
		}
	}
}

// TestLowLatencyAboveItsShare checks that a lease with low latency that would use all of the GPU has its share, as any other.
func TestLowLatencyAboveItsShare(t *testing.T) {
	sc := lowLatencyScenario(t, "a flood and training")
	near(t, Measure(sc, Variants()[0], Enforced, 2), 1.5, 20, 79)
	sc.Loads = sc.Loads[:1]
	near(t, Measure(sc, Variants()[0], Enforced, 1), 0.1, 100) // alone it has no limit
}

// TestStarvingLeaseHasSlices checks that a service whose requests wait ever longer next to kernels that are not interrupted gets slices.
func TestStarvingLeaseHasSlices(t *testing.T) {
	sc := lowLatencyScenario(t, "whole kernels of 200 ms")
	sc.Warm = time.Minute
	free, f := Measure(sc, Variants()[0], SideBySide, 2), Measure(sc, Variants()[0], Enforced, 2)
	if free.Latency[0].P99 < time.Minute || f.Latency[0].P99 > 2*time.Second {
		t.Errorf("p99 of a request is %v, side by side %v", f.Latency[0].P99, free.Latency[0].P99)
	}
}
