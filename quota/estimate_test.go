package quota

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// TestShareErrorIsAsStated draws samples of a known share and compares the spread of the estimates with their standard error.
func TestShareErrorIsAsStated(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, p := range []float64{0.1, 0.3, 0.5} {
		const runs, window = 2000, 10
		var square, stated float64
		for range runs {
			const samples = 7.2 * window
			busy := 0
			for range int(samples) {
				if r.Float64() < p {
					busy++
				}
			}
			var b Busy
			a := int(math.Round(100 * float64(busy) / samples))
			b.Add(
				0, window*time.Second, PartsOf(
					[]gpu.UtilSample{{PID: 1, SM: a}, {PID: 2, SM: 100 - a}},
					func(pid int) string { return []string{"", "a", "b"}[pid] },
				),
			)
			sh := b.Shares(window*time.Second, window*time.Second)["a"]
			square += (sh.Part - p) * (sh.Part - p) / runs
			stated += sh.StdErr / runs
		}
		if spread := math.Sqrt(square); math.Abs(spread-stated)/spread > 0.05 {
			t.Errorf("share %.1f: the estimates spread by %.4f, their standard error is %.4f", p, spread, stated)
		}
	}
}

// TestShareErrorOfFewSamples checks that the standard error is that of the samples which the driver took: of one a second it is larger
// than of seven, so that a share is not reported as met by chance.
func TestShareErrorOfFewSamples(t *testing.T) {
	for _, c := range []struct {
		period time.Duration
		want   float64
	}{
		{0, math.Sqrt(0.25 / 72)},
		{50 * time.Millisecond, math.Sqrt(0.25 / 72)}, // the driver keeps no more
		{500 * time.Millisecond, math.Sqrt(0.25 / 20)},
		{time.Second, math.Sqrt(0.25 / 10)},
	} {
		b := Busy{Period: c.period}
		b.Add(0, 10*time.Second, map[string]float64{"a": 0.5})
		if sh := b.Shares(10*time.Second, 10*time.Second)["a"]; math.Abs(sh.StdErr-c.want) > 1e-6 {
			t.Errorf("a sample each %v: the standard error is %.4f, want %.4f", c.period, sh.StdErr, c.want)
		}
	}
}

func TestBusy(t *testing.T) {
	names := map[int]string{1: "a", 2: "a", 3: "b"}
	lease := func(pid int) string { return names[pid] }
	var b Busy
	sec := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	b.Add(0, sec(4), PartsOf([]gpu.UtilSample{{PID: 1, SM: 20}, {PID: 2, SM: 10}, {PID: 3, SM: 70}}, lease))
	b.Add(sec(4), sec(8), PartsOf(nil, lease)) // idle
	b.Add(sec(8), sec(9), PartsOf([]gpu.UtilSample{{PID: 3, SM: 5000}, {PID: 1, SM: 100}}, lease))
	for _, tc := range []struct {
		now, window float64
		a, b        float64
	}{
		{4, 4, 0.3, 0.7},
		{8, 8, 0.15, 0.35},
		{8, 4, 0, 0},
		{6, 4, 0.15, 0.35},
		{9, 1, 0.5, 0.5},
	} {
		got := b.Shares(sec(tc.now), sec(tc.window))
		if math.Abs(got["a"].Part-tc.a) > 1e-9 || math.Abs(got["b"].Part-tc.b) > 1e-9 {
			t.Errorf("at %v over %v: %+v", tc.now, tc.window, got)
		}
		if want := math.Sqrt(tc.a * (1 - tc.a) / (7.2 * tc.window)); math.Abs(got["a"].StdErr-want) > 1e-9 {
			t.Errorf("at %v over %v: standard error %v, want %v", tc.now, tc.window, got["a"].StdErr, want)
		}
	}
	if got := b.Shares(0, 0); len(got) != 0 {
		t.Errorf("an empty window gives %+v", got)
	}
}
