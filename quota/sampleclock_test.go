package quota

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// TestSampleClock converts samples of both clocks, while the system clock is set to and fro. A sample is either converted to its
// true time, or dropped and its time reported as unknown.
func TestSampleClock(t *testing.T) {
	const second, hour = time.Second, time.Hour
	for _, tc := range []struct {
		name  string
		boot  bool
		steps map[int]time.Duration // by which the system clock is off from a reading on
		lost  int                   // most samples that may be dropped, of 600
	}{
		{"since 1970", false, nil, 0},
		{"since the boot", true, nil, 0},
		{"since the boot, the system clock is set", true, map[int]time.Duration{20: hour, 40: -hour}, 0},
		{"set forward by an hour", false, map[int]time.Duration{20: hour}, 20},
		{"set back by an hour", false, map[int]time.Duration{20: -hour}, 20},
		{"set back by three seconds", false, map[int]time.Duration{20: -3 * second}, 50},
		{"set forward by half a second", false, map[int]time.Duration{20: second / 2}, 20},
		{"slewed by a millisecond", false, map[int]time.Duration{20: second / 1000, 21: second / 500}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const uptime = 5000 * second
			epoch := time.Duration(time.Unix(1_700_000_000, 0).UnixNano())
			var c SampleClock
			type sample struct {
				stamp uint64
				at    time.Duration
			}
			var kept []sample // by the driver
			off, seen, last := time.Duration(0), 0, time.Duration(0)
			for i := range 60 {
				if d, ok := tc.steps[i]; ok {
					off = d
				}
				for k := range 10 {
					at := time.Duration(i)*second + time.Duration(k)*second/10 + second/20
					clock := epoch + off + at
					if tc.boot {
						clock = uptime + at
					}
					kept = append(kept, sample{uint64(clock.Microseconds()), at})
				}
				now := time.Duration(i+1) * second
				since := c.Since()
				var list []gpu.SeriesSample
				for _, x := range kept[max(0, len(kept)-100):] {
					if x.stamp > since {
						list = append(list, gpu.SeriesSample{Time: x.stamp, Percent: int(x.at/(second/10)) % 101})
					}
				}
				u := c.Convert(
					"GPU-0",
					Clocks{Now: now, Epoch: uint64((epoch + off + now).Microseconds()), Boot: uint64((uptime + now).Microseconds())},
					list,
				)
				if u.From < last && i > 0 || u.UpTo != now {
					t.Fatalf("reading %d: from %v to %v, the last was to %v", i, u.From, u.UpTo, last)
				}
				last = u.UpTo
				for _, p := range u.Periods {
					if p.End <= u.From {
						continue // before the time that is reported as known
					}
					seen++
					if want := float64(int(p.End/(second/10))%101) / 100; want != p.Busy {
						t.Fatalf("reading %d: the sample at %v is %v, want %v", i, p.End, p.Busy, want)
					}
				}
			}
			if seen < 600-tc.lost || seen > 600 {
				t.Errorf("%d of 600 samples, at most %d may be lost", seen, tc.lost)
			}
		})
	}
}

// TestSampleClockOfAnIdleGPU checks that old samples, which an idle GPU keeps, are no samples of now.
func TestSampleClockOfAnIdleGPU(t *testing.T) {
	var c SampleClock
	boot := uint64(100_000_000_000)
	u := c.Convert(
		"", Clocks{Now: time.Hour, Epoch: 1_700_000_000_000_000, Boot: boot},
		[]gpu.SeriesSample{{Time: boot - 3_000_000_000, Percent: 80}},
	)
	if len(u.Periods) != 0 || u.From >= u.UpTo {
		t.Errorf("%+v", u)
	}
	u = c.Convert(
		"", Clocks{Now: time.Hour + time.Second, Epoch: 1_700_000_001_000_000, Boot: boot + 1_000_000},
		[]gpu.SeriesSample{{Time: boot + 400_000, Percent: 80}},
	)
	if len(u.Periods) != 1 || u.Periods[0] != (Period{End: time.Hour + 400*time.Millisecond, Busy: 0.8}) {
		t.Errorf("%+v", u)
	}
}

// TestSampleClockThatWasNotRead checks that a time of which the driver was not asked, and has no samples any more, is unknown:
// it is not idle.
func TestSampleClockThatWasNotRead(t *testing.T) {
	second := uint64(1_000_000)
	boot := 1000 * second
	at := func(now time.Duration) Clocks {
		return Clocks{Now: now, Epoch: 1_700_000_000 * second, Boot: boot + uint64(now.Microseconds())}
	}
	ten := func(now time.Duration) (list []gpu.SeriesSample) {
		for ago := 10 * second; ago > 0; ago -= second / 10 {
			list = append(list, gpu.SeriesSample{Time: boot + uint64(now.Microseconds()) - ago, Percent: 100})
		}
		return list
	}
	var c SampleClock
	for _, now := range []time.Duration{time.Minute, 10 * time.Minute} { // The first query, and one after a long time.
		if u := c.Convert("", at(now), ten(now)); u.From < now-10*time.Second-time.Millisecond {
			t.Errorf("at %v: what was after %v is said to be known", now, u.From)
		}
	}
	now := 20 * time.Minute
	old := gpu.SeriesSample{Time: boot + uint64((now - time.Second*595).Microseconds()), Percent: 100}
	if u := c.Convert(
		"",
		at(now),
		append([]gpu.SeriesSample{{Time: boot + 599*second, Percent: 100}, old}, ten(now)...),
	); u.From != 10*time.Minute {
		t.Errorf("the driver has all samples since the last query: known since %v", u.From)
	}
	if u := c.Convert("", at(now+time.Minute), nil); u.From != now+time.Minute {
		t.Errorf("without any sample something is known since %v", u.From)
	}
}
