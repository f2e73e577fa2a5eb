package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpusim/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run launches one kernel after the other until the context is closed.
func run(c *engine.Context, kernel time.Duration) {
	for c.Launch(context.Background(), kernel, 1) == nil {
	}
}

func near(t *testing.T, what string, got, want, by time.Duration) {
	t.Helper()
	if d := got - want; d < -by || d > by {
		t.Errorf("%s = %v, want %v within %v", what, got, want, by)
	}
}

func TestAloneTakesItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.SystemClock{})
		defer e.Close()
		c := e.AddContext(7, "", engine.Options{Depth: 10})
		start := time.Now()
		if err := c.Launch(t.Context(), 5*time.Millisecond, 100); err != nil {
			t.Fatal(err)
		}
		near(t, "100 kernels accepted by a queue of 10 after", time.Since(start), 450*time.Millisecond, time.Microsecond)
		if err := c.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		near(t, "drained after", time.Since(start), 500*time.Millisecond, time.Microsecond)
		near(t, "busy", e.Busy()[7], 500*time.Millisecond, time.Microsecond)
	})
}

func TestGroupsShareEqually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.SystemClock{})
		defer e.Close()
		// Three clients of one MPS server are one group: together they receive the same time as the single process.
		for pid := 1; pid <= 3; pid++ {
			go run(e.AddContext(pid, "server 100", engine.Options{Depth: 4}), 3*time.Millisecond)
		}
		go run(e.AddContext(4, "", engine.Options{Depth: 20}), 7*time.Millisecond)
		time.Sleep(12 * time.Second)
		busy := e.Busy()
		for pid := 1; pid <= 3; pid++ {
			near(t, "busy of an MPS client", busy[pid], 2*time.Second, 5*time.Millisecond)
		}
		near(t, "busy of the single process", busy[4], 6*time.Second, 5*time.Millisecond)
	})
}

func TestShareCapsAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.SystemClock{})
		defer e.Close()
		go run(e.AddContext(1, "m", engine.Options{Share: 0.25}), time.Millisecond)
		time.Sleep(4 * time.Second)
		near(t, "alone at 25 %", e.Busy()[1], time.Second, time.Millisecond)
		go run(e.AddContext(2, "m", engine.Options{}), time.Millisecond)
		time.Sleep(4 * time.Second)
		near(t, "25 % with another", e.BusyOver(4 * time.Second)[1], time.Second, time.Millisecond)
		near(t, "the other uses the rest", e.BusyOver(4 * time.Second)[2], 3*time.Second, engine.SamplePeriod)
	})
}

func TestQueueDrainsWithoutItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.SystemClock{})
		defer e.Close()
		c := e.AddContext(1, "", engine.Options{Depth: 200})
		if accepted := c.TryLaunch(5*time.Millisecond, 500); accepted != 200 {
			t.Fatalf("a queue of 200 accepted %d kernels", accepted)
		}
		time.Sleep(400 * time.Millisecond)
		if n, work := c.Queued(); n != 120 || work != 600*time.Millisecond {
			t.Errorf("after 400 ms %d kernels and %v are left, want 120 and 600ms", n, work)
		}
		time.Sleep(5 * time.Second)
		near(t, "busy in the last second", e.BusyOver(time.Second)[1], 0, 0)
		near(t, "busy in all", e.Busy()[1], time.Second, time.Microsecond)
	})
}

func TestCloseDropsTheQueueAndWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.SystemClock{})
		defer e.Close()
		c := e.AddContext(1, "", engine.Options{Depth: 2})
		done := make(chan error)
		go func() { done <- c.Launch(t.Context(), time.Hour, 5) }()
		synctest.Wait()
		time.Sleep(time.Second)
		c.Close()
		c.Close()
		if err := <-done; !errors.Is(err, engine.ErrClosed) {
			t.Errorf("Launch on a closed context = %v, want ErrClosed", err)
		}
		if err := c.Sync(t.Context()); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("Sync on a closed context = %v, want ErrClosed", err)
		}
		time.Sleep(time.Second)
		near(t, "busy", e.Busy()[1], time.Second, 0)
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.SystemClock{})
		defer e.Close()
		c := e.AddContext(1, "", engine.Options{Depth: 1})
		c.TryLaunch(time.Hour, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Launch(ctx, time.Hour, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Launch past its deadline = %v", err)
		}
	})
}

func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.SystemClock{})
		defer e.Close()
		time.Sleep(time.Minute)
		if s := e.Samples(0); len(s) != 0 || e.Utilization() != 0 {
			t.Fatalf("an idle engine has %d samples and %d %%", len(s), e.Utilization())
		}
		a, b := e.AddContext(1, "", engine.Options{}), e.AddContext(2, "", engine.Options{})
		go run(a, 5*time.Millisecond)
		go run(b, 5*time.Millisecond)
		time.Sleep(30 * time.Second)
		s := e.Samples(0)
		if len(s) != engine.RingSize {
			t.Fatalf("the ring has %d samples, want %d", len(s), engine.RingSize)
		}
		count := map[int]int{}
		for i, x := range s {
			count[x.PID]++
			if x.SM != 100 {
				t.Errorf("sample %d reports %d %% of a busy engine", i, x.SM)
			}
			if i > 0 && x.Time <= s[i-1].Time {
				t.Errorf("sample %d is not newer than the one before", i)
			}
		}
		if count[1] < 15 || count[2] < 15 || count[1]+count[2] != engine.RingSize {
			t.Errorf("samples by process: %v", count)
		}
		if got := e.Samples(s[70].Time); len(got) != 1 || got[0] != s[71] {
			t.Errorf("samples since the last but one: %v", got)
		}
		if u := e.Utilization(); u != 100 {
			t.Errorf("utilization %d", u)
		}
		a.Close()
		b.Close()
		time.Sleep(time.Second)
		if got := e.Samples(0); len(got) < engine.RingSize-1 || e.Utilization() != 0 {
			t.Errorf("after a second of idleness: %d samples, %d %%", len(got), e.Utilization())
		}
		time.Sleep(2 * time.Minute)
		e.AddContext(3, "", engine.Options{}).TryLaunch(time.Second, 1)
		time.Sleep(2 * time.Second)
		if _, ok := e.Busy()[1]; ok {
			t.Error("a process that ended two minutes ago still has an account")
		}
	})
}

func TestPartlyBusyPeriodSaysItsPercent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.SystemClock{})
		defer e.Close()
		c := e.AddContext(1, "", engine.Options{})
		for range 100 { // 30 ms of every 100 ms
			c.TryLaunch(30*time.Millisecond, 1)
			time.Sleep(100 * time.Millisecond)
		}
		sum := 0
		for _, s := range e.Samples(0) {
			sum += s.SM
		}
		if mean := float64(sum) / engine.RingSize; math.Abs(mean-30) > 2 {
			t.Errorf("mean of the ring is %.1f %%, want 30", mean)
		}
	})
}

// TestSeriesAddsUp runs bursts under every way of sampling: the samples, each over the time since the one before, add up to
// the true busy time, but for the part of a percent that is rounded down.
func TestSeriesAddsUp(t *testing.T) {
	for _, s := range samplings() {
		t.Run(s.name, func(t *testing.T) {
			clock := &manualClock{now: time.Unix(1000, 0)}
			e := engine.NewSampled(clock, s.Sampling)
			defer e.Close()
			c := e.AddContext(1, "", engine.Options{Depth: 1000})
			var since uint64
			var got, most, unknown time.Duration
			count := 0
			period := s.Period
			if period == 0 {
				period = engine.SamplePeriod
			}
			longest := time.Duration(float64(period) * (1 + s.Jitter))
			for i := range 600 {
				c.TryLaunch(time.Duration(i%7)*5*time.Millisecond, 1) // every seventh is idle
				clock.now = clock.now.Add(50 * time.Millisecond)
				for _, x := range e.Series(since) {
					if x.Percent < 0 || x.Percent > 100 || x.Time <= since {
						t.Fatalf("sample %+v after %d", x, since)
					}
					if since > 0 {
						length := time.Duration(x.Time-since) * time.Microsecond
						if length > longest { // dry periods before it: its length is known to the jitter
							length = period
							unknown += longest - period
						}
						got += length * time.Duration(x.Percent) / 100
						most += length / 100
						count++
					}
					since = x.Time
				}
			}
			busy := e.Busy()[1]
			// The first period has no sample before it, and the last one has not ended.
			if got > busy+unknown || got+most+unknown+2*longest < busy {
				t.Errorf("%d samples add up to %v, want %v within %v", count, got, busy, most+unknown+2*longest)
			}
		})
	}
}

// TestRowsAgreeWithTheSeries lets processes come, work and go at random: each row is of a period of the series, with the
// same percentage, and names a process that worked in that period.
func TestRowsAgreeWithTheSeries(t *testing.T) {
	all := samplings()
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.SampledFrom(all).Draw(rt, "sampling")
		s.Seed = rapid.Uint64().Draw(rt, "seed")
		clock := &manualClock{now: time.Unix(1000, 0)}
		e := engine.NewSampled(clock, s.Sampling)
		defer e.Close()
		var contexts []*engine.Context
		before := map[int]time.Duration{}
		var rowsSince, seriesSince uint64
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				group := rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "group")
				contexts = append(contexts, e.AddContext(len(contexts)+1, group, engine.Options{Depth: 50}))
			case 1, 2:
				if len(contexts) > 0 {
					d := time.Duration(rapid.Int64Range(1, int64(30*time.Millisecond)).Draw(rt, "kernel"))
					rapid.SampledFrom(contexts).Draw(rt, "context").TryLaunch(d, rapid.IntRange(1, 20).Draw(rt, "count"))
				}
			case 3:
				if len(contexts) > 0 {
					rapid.SampledFrom(contexts).Draw(rt, "close").Close()
				}
			default:
				clock.now = clock.now.Add(time.Duration(rapid.Int64Range(0, int64(400*time.Millisecond)).Draw(rt, "pass")))
			}
			percent := map[uint64]int{}
			for _, x := range e.Series(seriesSince) {
				if x.Time <= seriesSince || x.Percent < 0 || x.Percent > 100 {
					rt.Fatalf("sample %+v after %d", x, seriesSince)
				}
				seriesSince, percent[x.Time] = x.Time, x.Percent
			}
			busy := e.Busy()
			for _, r := range e.Samples(rowsSince) {
				if p, ok := percent[r.Time]; !ok || p != r.SM || r.SM < 1 || r.Time <= rowsSince {
					rt.Fatalf("row %+v after %d, of the periods %v", r, rowsSince, percent)
				}
				if busy[r.PID] == 0 {
					rt.Fatalf("row %+v names a process that did not work", r)
				}
				rowsSince = r.Time
			}
			for pid, b := range busy {
				if b < before[pid] {
					rt.Fatalf("pid %d: busy fell from %v to %v", pid, before[pid], b)
				}
				before[pid] = b
			}
		}
	})
}

// sampling is a named way of sampling.
type sampling struct {
	name string
	engine.Sampling
}

// samplings are the ways of sampling that drivers may have.
func samplings() []sampling {
	var out []sampling
	for _, n := range []engine.Naming{engine.NamePeriod, engine.NameInstant, engine.NameLast} {
		for _, p := range []time.Duration{0, 168 * time.Millisecond, 200 * time.Millisecond} {
			for _, j := range []float64{0, 0.1} {
				for _, c := range []engine.SampleClock{engine.SinceEpoch, engine.SinceBoot} {
					for _, z := range []bool{false, true} {
						out = append(out, sampling{
							fmt.Sprintf("%s %v ±%v since %s zero %v", n, p, j, c, z),
							engine.Sampling{Naming: n, Period: p, Jitter: j, Clock: c, Uptime: time.Hour, Seed: 7, ZeroWhenIdle: z},
						})
					}
				}
			}
		}
	}
	return out
}

// TestTimeIsConserved launches and closes at random: no process runs more than it launched, and together the processes
// run no longer than the time that passed.
func TestTimeIsConserved(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		clock := &manualClock{now: time.Unix(1000, 0)}
		e := engine.New(clock)
		defer e.Close()
		var contexts []*engine.Context
		launched := map[int]time.Duration{}
		closed := map[int]bool{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0:
				pid := len(contexts) + 1
				group := rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "group")
				contexts = append(contexts, e.AddContext(pid, group, engine.Options{Depth: 50}))
			case 1, 2:
				if len(contexts) == 0 {
					continue
				}
				c := rapid.SampledFrom(contexts).Draw(rt, "context")
				d := time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(rt, "kernel"))
				launched[c.PID()] += d * time.Duration(c.TryLaunch(d, rapid.IntRange(1, 80).Draw(rt, "count")))
			case 3:
				clock.now = clock.now.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(rt, "pass")))
			case 4:
				if len(contexts) > 0 {
					c := rapid.SampledFrom(contexts).Draw(rt, "close")
					c.Close()
					closed[c.PID()] = true
				}
			}
		}
		const tiny = time.Microsecond
		var sum time.Duration
		busy := e.Busy()
		for _, c := range contexts {
			b := busy[c.PID()]
			sum += b
			_, left := c.Queued()
			if !closed[c.PID()] && (b+left-launched[c.PID()]).Abs() > tiny {
				rt.Fatalf("pid %d launched %v, ran %v and has %v left", c.PID(), launched[c.PID()], b, left)
			}
			if b > launched[c.PID()]+tiny {
				rt.Fatalf("pid %d ran %v, but launched %v", c.PID(), b, launched[c.PID()])
			}
		}
		if passed := clock.now.Sub(time.Unix(1000, 0)); sum > passed+tiny {
			rt.Fatalf("%v of work in %v", sum, passed)
		}
	})
}

// manualClock only moves in steps and its timers never fire: nothing waits in the tests that use it.
type manualClock struct{ now time.Time }

func (c *manualClock) Now() time.Time { return c.now }

func (c *manualClock) AfterFunc(d time.Duration, f func()) engine.Timer {
	return time.AfterFunc(time.Hour, f)
}

func BenchmarkThousandContexts(b *testing.B) {
	clock := &manualClock{now: time.Unix(1000, 0)}
	e := engine.New(clock)
	defer e.Close()
	var contexts []*engine.Context
	for pid := range 1000 {
		contexts = append(contexts, e.AddContext(pid, "", engine.Options{Depth: 200}))
	}
	for i := 0; b.Loop(); i++ {
		c := contexts[i%1000]
		c.TryLaunch(5*time.Millisecond, 1)
		clock.now = clock.now.Add(5 * time.Millisecond)
	}
}
