package quota

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

func TestShares(t *testing.T) {
	names := map[int]string{1: "a", 2: "a", 3: "b"}
	samples := []gpu.UtilSample{{PID: 1, SM: 90}, {PID: 2, SM: 10}, {PID: 3, SM: 100}, {PID: 4, SM: 50}, {PID: 3, SM: 0}}
	got := Shares(samples, time.Second, func(pid int) string { return names[pid] })
	a := got["a"]
	if a.Samples != 2 || math.Abs(a.Part-2/7.2) > 1e-9 || got["b"].Samples != 1 || got[""].Samples != 1 {
		t.Errorf("got %+v", got)
	}
	if want := math.Sqrt(a.Part * (1 - a.Part) / 7.2); a.StdErr != want {
		t.Errorf("standard error %v, want %v", a.StdErr, want)
	}
	if got := Shares(samples, 0, func(int) string { return "" }); len(got) != 0 {
		t.Errorf("an empty window gives %+v", got)
	}
}

// TestShareErrorIsAsStated draws samples of a true share and compares the spread of the estimates with what they say of
// themselves.
func TestShareErrorIsAsStated(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, p := range []float64{0.1, 0.3, 0.5} {
		const runs, window = 2000, 10
		var square, said float64
		for range runs {
			var samples []gpu.UtilSample
			for range int(7.2 * window) {
				pid := 2
				if r.Float64() < p {
					pid = 1
				}
				samples = append(samples, gpu.UtilSample{PID: pid, SM: 100})
			}
			sh := Shares(samples, window*time.Second, func(pid int) string { return []string{"", "a", "b"}[pid] })["a"]
			square += (sh.Part - p) * (sh.Part - p) / runs
			said += sh.StdErr / runs
		}
		if seen := math.Sqrt(square); math.Abs(seen-said)/seen > 0.05 {
			t.Errorf("share %.1f: the estimates spread by %.4f and say %.4f", p, seen, said)
		}
	}
}

func TestBusy(t *testing.T) {
	names := map[int]string{1: "a", 2: "a", 3: "b"}
	lease := func(pid int) string { return names[pid] }
	var b Busy
	sec := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	b.Add(0, sec(4), []gpu.UtilSample{{PID: 1, SM: 20}, {PID: 2, SM: 10}, {PID: 3, SM: 70}}, lease)
	b.Add(sec(4), sec(8), nil, lease) // idle
	b.Add(sec(8), sec(9), []gpu.UtilSample{{PID: 3, SM: 5000}, {PID: 1, SM: 100}}, lease)
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
