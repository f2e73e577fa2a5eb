package quota

import (
	"slices"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// TestLostSamplesAreUnknown checks that samples which a driver has lost, because it restarted, leave a time of which nothing is known:
// without the newest known sample a gap is no idle time. An order of the samples means nothing.
func TestLostSamplesAreUnknown(t *testing.T) {
	const boot, step = 5000 * time.Second, 100 * time.Millisecond
	sample := func(at time.Duration) gpu.SeriesSample {
		return gpu.SeriesSample{Time: uint64((boot + at).Microseconds()), Percent: 100}
	}
	for name, c := range map[string]struct {
		keeps func(at time.Duration) bool // at 5 s the driver has a sample of this time
		from  time.Duration               // of what is known by the answer then
		first time.Duration               // the end of the first period
	}{
		"all":                   {func(time.Duration) bool { return true }, 4 * time.Second, 4*time.Second + step},
		"none from 4.3 s on":    {func(at time.Duration) bool { return at <= 4300*time.Millisecond }, 4 * time.Second, 4*time.Second + step},
		"none: it restarted":    {func(time.Duration) bool { return false }, 5 * time.Second, 0},
		"it restarted at 4.5 s": {func(at time.Duration) bool { return at > 4500*time.Millisecond }, 4600 * time.Millisecond, 4600 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var clock SampleClock
			for now := time.Second; now <= 5*time.Second; now += time.Second {
				var list []gpu.SeriesSample
				for at := step; at <= now; at += step {
					if x := sample(at); x.Time > clock.Since() && (now < 5*time.Second || c.keeps(at)) {
						list = append(list, x)
					}
				}
				slices.Reverse(list)
				u := clock.Convert("", Clocks{Now: now, Epoch: 1 << 50, Boot: uint64((boot + now).Microseconds())}, list)
				if !slices.IsSortedFunc(u.Periods, func(a, b Period) int { return int(a.End - b.End) }) {
					t.Fatalf("at %v: %v", now, u.Periods)
				}
				if now < 5*time.Second {
					continue
				}
				if u.From != c.from {
					t.Errorf("known from %v, want %v", u.From, c.from)
				}
				if c.first != 0 && (len(u.Periods) == 0 || u.Periods[0].End != c.first) || c.first == 0 && len(u.Periods) != 0 {
					t.Errorf("periods %v, want the first to end at %v", u.Periods, c.first)
				}
			}
		})
	}
}

// TestRowsAreMissingWhileTheGPUIsBusy checks that answers without any process, while the series says that the GPU is busy, say nothing:
// no lease becomes idle, and of the time nothing is known.
func TestRowsAreMissingWhileTheGPUIsBusy(t *testing.T) {
	for _, period := range []time.Duration{ms(139), ms(1000)} {
		b := newBound()
		for range 40 {
			b.second(period, map[string]float64{"a": 0.5, "b": 0.5})
		}
		for i := range 40 {
			b.second(period, nil)
			for _, u := range b.s.Usage(b.now) {
				if u.Idle {
					t.Fatalf("samples each %v: after %d s %+v", period, i, u)
				}
			}
		}
		if v := b.s.Verdict(b.now, "a"); v.State != Unmeasured || v.Reason == "" {
			t.Errorf("samples each %v: %+v", period, v)
		}
		if st := b.s.Status(); !st.Enforced {
			t.Errorf("samples each %v: %+v", period, st)
		}
		for range 20 {
			b.second(period, map[string]float64{"a": 0.5, "b": 0.5})
		}
		if v := b.s.Verdict(b.now, "a"); period == ms(139) && v.State != Met {
			t.Errorf("the processes are named again: %+v", v)
		}
	}
}
