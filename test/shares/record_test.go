package shares

import (
	"math"
	"testing"
	"time"
)

// alternating is a record of two tenants that have slices in turn, read every 50 ms.
func alternating(first, second, end time.Duration) Record {
	const step = 50 * time.Millisecond
	r := Record{{Busy: []float64{0, 0}}}
	busy := []float64{0, 0}
	for at := step; at <= end; at += step {
		in := 0
		if (at-step)%(first+second) >= first {
			in = 1
		}
		busy[in] += step.Seconds()
		r = append(r, Reading{at, append([]float64(nil), busy...)})
	}
	return r
}

func TestRecord(t *testing.T) {
	near := func(what string, got, want, by float64) {
		t.Helper()
		if math.IsNaN(got) || math.Abs(got-want) > by {
			t.Errorf("%s is %.3f, want %.3f within %.3f", what, got, want, by)
		}
	}
	r := alternating(300*time.Millisecond, 700*time.Millisecond, 60*time.Second)
	exact := []float64{0.3, 0.7}
	rms, worst := r.Deviation(exact, 10*time.Second)
	near("RMS of exact shares", rms, 0, 1e-6)
	near("the worst window of exact shares", worst, 0, 1e-6)
	near("the bias of exact shares", r.Bias(exact), 0, 1e-6)
	near("busy", r.Busy(), 100, 1e-6)
	near("the longest wait", r.LongestWait().Seconds(), 0.7, 0.051)

	rms, worst = r.Deviation([]float64{0.2, 0.8}, 10*time.Second)
	near("RMS of shares 10 points off", rms, 10, 1e-6)
	near("the worst window 10 points off", worst, 10, 1e-6)
	near("the bias 10 points off", r.Bias([]float64{0.2, 0.8}), 10, 1e-6)

	// A tenant has nothing in the second half: the mean error of the whole record hides it, the windows do not.
	half := alternating(time.Second, 0, 30*time.Second)
	for at := 30*time.Second + 50*time.Millisecond; at <= time.Minute; at += 50 * time.Millisecond {
		last := half[len(half)-1].Busy
		half = append(half, Reading{at, []float64{last[0], last[1] + 0.05}})
	}
	near("the bias over both halves", half.Bias([]float64{0.5, 0.5}), 0, 1e-6)
	rms, worst = half.Deviation([]float64{0.5, 0.5}, 10*time.Second)
	near("the worst window", worst, 50, 1e-6)
	if rms < 40 {
		t.Errorf("RMS is %.1f, want more than 40", rms)
	}
	near("the longest wait", half.LongestWait().Seconds(), 30, 0.1)

	idle := Record{{0, []float64{0}}, {time.Minute, []float64{0}}}
	if rms, _ := idle.Deviation([]float64{1}, 10*time.Second); !math.IsNaN(rms) {
		t.Errorf("nothing was used, and RMS is %v", rms)
	}
	near("busy of an idle GPU", idle.Busy(), 0, 0)
}
