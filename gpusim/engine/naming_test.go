package engine_test

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
)

// TestNaming runs two processes one after the other in each period, and lets the GPU idle at its end. The readings of the
// driver's documentation differ in whom they name.
func TestNaming(t *testing.T) {
	const period = 100 * time.Millisecond
	for _, c := range []struct {
		name          string
		first, second time.Duration
		naming        engine.Naming
		rows          int // of 60 periods
		lowest, most  int // rows that name the first process
	}{
		{"by instant, idle at the end", 60 * time.Millisecond, 20 * time.Millisecond, engine.NameInstant, 0, 0, 0},
		{"last, idle at the end", 60 * time.Millisecond, 20 * time.Millisecond, engine.NameLast, 60, 0, 0},
		{"by period, idle at the end", 60 * time.Millisecond, 20 * time.Millisecond, engine.NamePeriod, 60, 36, 54},
		{"by instant, busy", 60 * time.Millisecond, 50 * time.Millisecond, engine.NameInstant, 60, 0, 0},
		{"last, busy", 60 * time.Millisecond, 50 * time.Millisecond, engine.NameLast, 60, 0, 0},
		{"by period, busy", 60 * time.Millisecond, 50 * time.Millisecond, engine.NamePeriod, 60, 26, 46},
		{"by default", 60 * time.Millisecond, 20 * time.Millisecond, "", 60, 36, 54},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := &manualClock{now: time.Unix(1000, 0)}
			e := engine.NewSampled(clock, engine.Sampling{Naming: c.naming, Period: period})
			defer e.Close()
			a, b := e.AddContext(1, "", engine.Options{}), e.AddContext(2, "", engine.Options{})
			for range 60 {
				a.TryLaunch(c.first, 1)
				clock.now = clock.now.Add(c.first)
				b.TryLaunch(c.second, 1)
				clock.now = clock.now.Add(period - c.first)
				b.Close() // what is left of its work would run in the next period
				b = e.AddContext(2, "", engine.Options{})
			}
			rows, first := e.Samples(0), 0
			for _, r := range rows {
				if r.PID == 1 {
					first++
				}
			}
			if len(rows) != c.rows || first < c.lowest || first > c.most {
				t.Errorf("%d of %d rows name the first process, want %d to %d of %d", first, len(rows), c.lowest, c.most, c.rows)
			}
			series := e.Series(0)
			if want := int(min(c.first+c.second, period) * 100 / period); len(series) != 60 || series[0].Percent != want ||
				series[59].Percent != want {
				t.Errorf("%d samples %+v, want 60 of %d %%", len(series), series, want)
			}
		})
	}
}

// TestInstantNamesByRate: of processes that run side by side, a row names each equally often.
func TestInstantNamesByRate(t *testing.T) {
	for _, naming := range []engine.Naming{engine.NameInstant, engine.NameLast} {
		clock := &manualClock{now: time.Unix(1000, 0)}
		e := engine.NewSampled(clock, engine.Sampling{Naming: naming, Seed: 5})
		defer e.Close()
		for pid := 1; pid <= 3; pid++ { // a group of two, and a third process
			group := ""
			if pid < 3 {
				group = "server"
			}
			e.AddContext(pid, group, engine.Options{}).TryLaunch(time.Hour, 1)
		}
		count := map[int]int{}
		var since uint64
		for range 1000 {
			clock.now = clock.now.Add(engine.SamplePeriod)
			for _, r := range e.Samples(since) {
				count[r.PID]++
				since = r.Time
			}
		}
		if sum := count[1] + count[2] + count[3]; sum < 999 || count[1] < 210 || count[2] < 210 || count[3] < 460 {
			t.Errorf("by %s: %v of 1000 rows, want 250, 250 and 500", naming, count)
		}
	}
}

func TestZeroWhenIdle(t *testing.T) {
	for _, zero := range []bool{false, true} {
		clock := &manualClock{now: time.Unix(1000, 0)}
		e := engine.NewSampled(clock, engine.Sampling{Period: 100 * time.Millisecond, ZeroWhenIdle: zero})
		defer e.Close()
		c := e.AddContext(1, "", engine.Options{})
		c.TryLaunch(150*time.Millisecond, 1)
		clock.now = clock.now.Add(time.Second)
		var got []int
		for _, s := range e.Series(0) {
			got = append(got, s.Percent)
		}
		want := 2
		if zero {
			want = 10
		}
		if len(got) != want || got[0] != 100 || got[1] != 50 || got[len(got)-1] != map[bool]int{false: 50, true: 0}[zero] {
			t.Errorf("zero %v: %v, want %d samples, 100 and 50 first", zero, got, want)
		}
		if u := e.Utilization(); u != 0 {
			t.Errorf("zero %v: an idle engine is at %d %%", zero, u)
		}
	}
}

// TestShortWorkIsNotListed: less than a percent is 0 in the series, and has no row.
func TestShortWorkIsNotListed(t *testing.T) {
	clock := &manualClock{now: time.Unix(1000, 0)}
	e := engine.NewSampled(clock, engine.Sampling{Period: 200 * time.Millisecond})
	defer e.Close()
	e.AddContext(1, "", engine.Options{}).TryLaunch(1999*time.Microsecond, 1)
	clock.now = clock.now.Add(time.Second)
	if s := e.Series(0); len(s) != 1 || s[0].Percent != 0 {
		t.Errorf("series %+v, want one sample of 0 %%", s)
	}
	if r := e.Samples(0); len(r) != 0 {
		t.Errorf("rows %+v, want none", r)
	}
}

// TestSamplesFollowTheClock: the times are since 1970 or since boot, and those since 1970 follow the date when it is set.
func TestSamplesFollowTheClock(t *testing.T) {
	for _, c := range []struct {
		name string
		engine.Sampling
		first, third time.Duration // times of samples before and after the date was set one hour forward
	}{
		{"since epoch", engine.Sampling{Clock: engine.SinceEpoch}, 1000*time.Second + 100*time.Millisecond, 1000*time.Second + 300*time.Millisecond + time.Hour},
		{"since boot", engine.Sampling{Clock: engine.SinceBoot, Uptime: time.Minute}, time.Minute + 100*time.Millisecond, time.Minute + 300*time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := &jumpingClock{manualClock: manualClock{now: time.Unix(1000, 0)}}
			c.Period = 100 * time.Millisecond
			e := engine.NewSampled(clock, c.Sampling)
			defer e.Close()
			e.AddContext(1, "", engine.Options{}).TryLaunch(time.Second, 1)
			clock.now = clock.now.Add(200 * time.Millisecond)
			before := e.Series(0)
			clock.now = clock.now.Add(100 * time.Millisecond)
			clock.jump = time.Hour
			after := e.Series(0)
			if len(before) != 2 || len(after) != 3 || after[0] != before[0] ||
				after[0].Time != uint64(c.first.Microseconds()) || after[2].Time != uint64(c.third.Microseconds()) {
				t.Errorf("%+v, then %+v; want %v first and %v third", before, after, c.first, c.third)
			}
		})
	}
}

// jumpingClock is a manual clock whose date was set.
type jumpingClock struct {
	manualClock
	jump time.Duration
}

func (c *jumpingClock) Date() time.Time { return c.now.Add(c.jump) }
