package fairness

import (
	"cmp"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/enumeration"
)

// TestMatrix runs every scenario with every sampler and checks the figures: errors of the shares, how busy the GPU is, and how
// long a lease is frozen. With -short it runs a sample. If all cells run no exception may be there that none of them needs.
func TestMatrix(t *testing.T) {
	enumeration.Long(t)
	const seeds = 3 // the limits are for means
	cell := 0
	var all needed
	if enumeration.Stride(5) == 1 {
		t.Cleanup(func() { all.check(t) })
	}
	for _, sc := range Scenarios() {
		var free Figures
		if !sc.Bound {
			free = Measure(sc, Variants()[0], SideBySide, seeds)
		}
		for _, v := range Variants() {
			if cell++; cell%enumeration.Stride(5) != 0 {
				continue
			}
			t.Run(sc.Name+"/"+v.Name, func(t *testing.T) {
				t.Parallel()
				f := Measure(sc, v, Enforced, seeds)
				t.Logf("%v; %.1f; %s", f, f.Of, f.Requests())
				all.add(sc, v, f, free)
				if f.Longest > sc.longest()+10*time.Millisecond {
					t.Errorf("a lease was frozen for %v, the limit is %v", f.Longest, sc.longest())
				}
				if sc.Bound {
					checkBound(t, f, sc.Limits(v))
				} else {
					checkDemands(t, sc, f, free, sc.Limits(v))
				}
				if sc.AtLeastShare {
					checkAtLeastShare(t, sc, f, free, v)
				}
				if most := cmp.Or(sc.Limits(v).Gain, GainTarget); f.Gain > most {
					t.Errorf(
						"in a window of 10 s the first load has %.1f points more than its share and what others leave, at most %.1f",
						f.Gain,
						most,
					)
				}
			})
		}
	}
}

// TestAlternation checks the error that long kernels have by themselves.
func TestAlternation(t *testing.T) {
	for _, c := range []struct {
		kernel time.Duration
		share  float64
		window time.Duration
		want   float64
	}{
		{2 * time.Second, 0.5, 4 * time.Second, 0},                       // a whole cycle
		{2 * time.Second, 0.1, 60 * time.Second, 0},                      // three cycles
		{2 * time.Second, 0.5, 2 * time.Second, 100 * math.Sqrt(1.0/12)}, // 0 to 1, uniform
		{2 * time.Second, 0.5, 10 * time.Second, 20 * math.Sqrt(1.0/12)},
	} {
		if got := alternation(c.kernel, c.share, c.window); math.Abs(got-c.want) > 0.02 {
			t.Errorf("%+v: %.3f", c, got)
		}
	}
}

// checkBound checks leases that keep the GPU busy.
func checkBound(t *testing.T, f Figures, want Limits) {
	t.Helper()
	if f.RMS10 > want.RMS10 || f.RMS60 > want.RMS60 || f.Bias > want.Bias || f.Busy < want.Busy {
		t.Errorf("%v; limits: %+v", f, want)
	}
}

// checkDemands checks leases that leave the GPU idle at times: the parts of the time are those of the max-min fair division of what
// each would use alone, the GPU is as busy as side by side, and a request waits no longer than there.
func checkDemands(t *testing.T, sc Scenario, f, free Figures, want Limits) {
	t.Helper()
	latency := want.Latency
	if f.RMS10 > want.RMS10 || f.Busy < want.Busy*free.Busy/100 {
		t.Errorf("%v, %.1f; side by side %v, %.1f, due %.1f; limits: %+v", f, f.Of, free, free.Of, f.Due, want)
	}
	for i, l := range f.Latency {
		if l.Requests == 0 || sc.Demanding(i) {
			continue
		}
		if want.Median != 0 && l.P50 > free.Latency[i].P50+want.Median {
			t.Errorf("load %d: half of the requests %v, side by side %v; limits: %+v", i, l.P50, free.Latency[i].P50, want)
		}
		if l.P99 > free.Latency[i].P99+latency {
			t.Errorf("load %d: p99 of a request %v, side by side %v; limits: %+v", i, l.P99, free.Latency[i].P99, want)
		}
	}
}

// checkAtLeastShare checks that none that is always busy has less than its share or than side by side, whichever is less, and that the
// GPU is nearly as busy as there.
func checkAtLeastShare(t *testing.T, sc Scenario, f, free Figures, v Variant) {
	t.Helper()
	const margin = 2 // points: slices are tried now and then
	var shares float64
	for _, l := range sc.Loads {
		shares += l.Share
	}
	for i, l := range sc.Loads {
		if l.Off == 0 && l.Queue != 0 && !v.NoSeries {
			if due := 100 * l.Share / shares; f.Of[i] < min(due, free.Of[i])-margin {
				t.Errorf("load %d has %.1f %% of the time, due are %.1f, side by side %.1f", i, f.Of[i], due, free.Of[i])
			}
		}
	}
	least := free.Busy - 2*margin
	switch {
	case v.NoSeries:
		least = free.Busy * 0.6 // without the series, time in which nothing runs is not seen
	case strings.HasPrefix(v.Name, "slow"):
		least -= 2 * margin // as without the series, in rounds that are longer
	}
	if f.Busy < least {
		t.Errorf("the GPU is %.1f %% busy, %.1f %% side by side", f.Busy, free.Busy)
	}
}
