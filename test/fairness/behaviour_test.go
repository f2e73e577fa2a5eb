package fairness

import (
	"math"
	"testing"
	"time"

	"github.com/gpushare/gpushare/quota"
)

// busy is a load that keeps the GPU busy.
func busy(share float64) Load { return Load{Share: share, Program: Program{Queue: 50 * ms}} }

// near fails the test unless the loads have these percentages of the time.
func near(t *testing.T, f Figures, points float64, want ...float64) {
	t.Helper()
	for i, w := range want {
		if math.Abs(f.Of[i]-w) > points {
			t.Errorf("load %d has %.1f %% of the time, want %.1f within %.1f; %.1f", i, f.Of[i], w, points, f.Of)
		}
	}
}

// TestPriorities checks that a lower class has the floor together while a higher one has work, and all the time otherwise.
func TestPriorities(t *testing.T) {
	high, low := busy(10), busy(90)
	high.Priority, low.Priority = quota.PriorityHigh, quota.PriorityLow
	v := Variants()[1]
	near(t, Measure(Scenario{Loads: []Load{high, busy(50), low}}, v, Enforced, 2), 1.5, 94, 1.8, 3.2)
	late := high
	late.From, late.Until = 60*time.Second, 140*time.Second
	sc := Scenario{Loads: []Load{late, busy(100)}, Long: 120 * time.Second}
	// From 20 s to 140 s: the lower class is alone for 40 s, and has the floor for 80 s.
	near(t, Measure(sc, v, Enforced, 2), 2, 63, 36)
}

// TestCap checks that a lease with a cap has no more than that, alone and with others, and that the others have the rest.
func TestCap(t *testing.T) {
	capped := busy(80)
	capped.Cap = 0.25
	v := Variants()[1]
	near(t, Measure(Scenario{Loads: []Load{capped}}, v, Enforced, 2), 2, 25)
	near(t, Measure(Scenario{Loads: []Load{capped, busy(20)}}, v, Enforced, 2), 2.5, 25, 73)
}

// TestSynchronousHasItsShare checks that a program that waits for each kernel, with a few percent of its slices idle between
// them, has its share of what was used. One that leaves a lot idle gets no longer slices for that.
func TestSynchronousHasItsShare(t *testing.T) {
	for _, v := range []Variant{Variants()[1], Variants()[3], Variants()[4]} {
		for _, think := range []time.Duration{20 * time.Microsecond, 70 * time.Microsecond, 200 * time.Microsecond} {
			sc := Scenario{Loads: []Load{{Share: 30, Program: Program{Work: ms, Think: think}}, busy(70)}}
			if f := Measure(sc, v, Enforced, 2); math.Abs(f.Shares[0]-30) > 0.6 {
				t.Errorf("%s: with %v between kernels it has %.1f %% of what was used, want 30", v.Name, think, f.Shares[0])
			}
		}
		sc := Scenario{Loads: []Load{{Share: 30, Program: Program{Work: ms, Think: ms}}, busy(70)}}
		if f := Measure(sc, v, Enforced, 2); f.Of[1] < 69 {
			t.Errorf("%s: next to a lease that leaves half of its slices idle the other has %.1f %%, due are 70", v.Name, f.Of[1])
		}
	}
}

// TestIdleLeaseDelaysNoOther checks that a lease that has the GPU open and does nothing is not waited for, and that it has its
// share soon after it has work.
func TestIdleLeaseDelaysNoOther(t *testing.T) {
	for _, v := range []Variant{Variants()[1], Variants()[7]} {
		lazy := Load{Share: 50, Program: Program{Queue: 50 * ms, On: 10 * time.Minute, Off: time.Hour}}
		sleeping := Load{Share: 50, Program: Program{Work: ms, Think: time.Hour}}
		near(t, Measure(Scenario{Loads: []Load{sleeping, busy(50)}}, v, Enforced, 2), 1, 0, 100)
		// It is on in the first ten minutes of each cycle: the run ends after 20 s + 240 s, so it is always on.
		near(t, Measure(Scenario{Loads: []Load{lazy, busy(50)}}, v, Enforced, 2), 2, 50, 50)
	}
	// Off for 30 s, on for 60 s: while it is on it has its share.
	f := Measure(
		Scenario{
			Loads: []Load{{Share: 50, Program: Program{Queue: 50 * ms, On: time.Minute, Off: 30 * time.Second}}, busy(50)},
			Long:  260 * time.Second,
		},
		Variants()[1],
		Enforced,
		2,
	)
	if f.Of[0] < 29 || f.Of[0] > 36 || f.Busy < 95 {
		t.Errorf("%.1f, busy %.1f", f.Of, f.Busy)
	}
}

// TestIdlenessIsNoCredit checks that a lease with a small share gets no more by being idle at times.
func TestIdlenessIsNoCredit(t *testing.T) {
	for _, off := range []time.Duration{2 * time.Second, 5 * time.Second, 20 * time.Second} {
		sc := Scenario{Loads: []Load{{Share: 10, Program: Program{Queue: 50 * ms, On: 20 * time.Second, Off: off}}, busy(90)}}
		on := 20 / (20 + off.Seconds())
		if f := Measure(sc, Variants()[1], Enforced, 2); f.Of[0] > 10+2*(1-on) {
			t.Errorf("off for %v of %v: it has %.1f %% of the time, its share is 10 %%", off, 20*time.Second+off, f.Of[0])
		}
	}
}

// TestFallbackEnds checks that leases that did not use their slices run concurrently, and that the shares are enforced again
// when they do. One with a cap has slices also when it leaves them idle.
func TestFallbackEnds(t *testing.T) {
	host := Load{Share: 50, Until: 100 * time.Second, Program: Program{Work: 10 * ms, Think: 30 * ms}, Cap: 0.9}
	late := Load{Share: 30, From: 101 * time.Second, Program: Program{Queue: 50 * ms}}
	sc := Scenario{Loads: []Load{host, late, busy(70)}, Warm: 60 * time.Second, Long: 30 * time.Second}
	if f := Run(sc, Variants()[1], Enforced, 1); f.Status.Enforced || f.Status.Reason == "" || f.Busy < 98 {
		t.Errorf("with a lease that waits for the host: %+v, busy %.1f", f.Status, f.Busy)
	}
	sc.Warm, sc.Long = 130*time.Second, 120*time.Second
	f := Run(sc, Variants()[1], Enforced, 1)
	if !f.Status.Enforced {
		t.Errorf("with other leases: %+v", f.Status)
	}
	near(t, f, 2, 0, 30, 70)
	// The same leases: the retry finds that the slices are used.
	sc = Scenario{Loads: []Load{{Share: 30, Program: Program{Queue: 50 * ms}}, busy(70)}, Warm: 60 * time.Second, Long: 60 * time.Second}
	if f := Run(sc, Variants()[1], Enforced, 1); !f.Status.Enforced {
		t.Errorf("leases that use their slices: %+v", f.Status)
	}
}

// TestDemandsThatFitFreezeNone checks that no lease is frozen, but for the trials at the start, when all together need no more than the
// GPU has, or one needs more than its share; and that the status says why.
func TestDemandsThatFitFreezeNone(t *testing.T) {
	for name, loads := range map[string][]Load{
		"two that wait for their hosts":  {does(50, Program{Work: 10 * ms, Think: 30 * ms}), does(50, Program{Work: 10 * ms, Think: 30 * ms})},
		"three services":                 {inference(20), inference(30), inference(50)},
		"a service and a training":       {inference(20), training(80)},
		"two services and a training":    {inference(20), inference(30), training(50)},
		"a data loader below its share":  {does(80, Program{Work: 60 * ms, Think: 40 * ms}), inference(20)},
		"requests at random, a training": {does(30, atRandom), training(70)},
	} {
		t.Run(name, func(t *testing.T) {
			sc := Scenario{Loads: loads, Warm: 20 * time.Second, Long: 40 * time.Second}
			for _, v := range []Variant{Variants()[1], Variants()[3], Variants()[6]} {
				started := sc
				started.Long = 10 * time.Millisecond
				began, f := Run(started, v, Enforced, 1), Run(sc, v, Enforced, 1)
				free := Run(sc, v, SideBySide, 1)
				if n := f.Freezes - began.Freezes; n != 0 {
					t.Errorf("%s: %d freezes after 20 s", v.Name, n)
				}
				if f.Busy < free.Busy-0.5 || !f.Status.Enforced || f.Status.Reason == "" {
					t.Errorf("%s: %.1f %% busy, %.1f side by side; %+v", v.Name, f.Busy, free.Busy, f.Status)
				}
			}
		})
	}
}

// TestEntryAsLight checks that a service that joins a training is known as light within five seconds: from then on it is never frozen.
func TestEntryAsLight(t *testing.T) {
	for _, v := range Variants() {
		if v.Slow() || v.Series == Lags {
			continue // What is measured there needs longer: the matrix has the figures.
		}
		for seed := range uint64(5) {
			late := inference(20)
			late.From = 30 * time.Second
			sc := Scenario{Loads: []Load{training(80), late}}
			n := newNode(withDefaults(sc), v, Enforced, seed)
			n.run(late.From + 5*time.Second)
			before, freezes := n.processes[1].frozenFor, n.freezes
			n.run(late.From + 50*time.Second)
			if after := n.processes[1].frozenFor; after != before || n.processes[1].frozen {
				t.Errorf("%s: frozen for %v after five seconds, %d freezes of all", v.Name, after-before, n.freezes-freezes)
			}
			n.engine.Close()
		}
	}
}

// TestRiserIsLimited checks that a lease that rises above its share is soon held to it. What it has after that is its share, within what
// the samples can tell.
func TestRiserIsLimited(t *testing.T) {
	const seeds = 32
	for _, v := range []Variant{Variants()[1], Variants()[3], Variants()[6], Variants()[7]} {
		var sum float64
		for seed := range uint64(seeds) {
			riser := changes(10, Phase{60 * time.Second, service}, Phase{time.Hour, flood})
			n := newNode(withDefaults(Scenario{Loads: []Load{riser, training(90)}}), v, Enforced, seed)
			n.run(60 * time.Second)
			before := n.busy()[0]
			n.run(84 * time.Second)
			sum += 100 * (n.busy()[0] - before).Seconds() / 24
			n.engine.Close()
		}
		if mean := sum / seeds; mean > 14 {
			t.Errorf("%s: %.1f %% from the rise on, its share is 10 %%", v.Name, mean)
		}
	}
}

// TestLongKernelsFreezeNoLongerThanTheLimit checks that no lease is frozen for longer than the limit, however long the kernels run: one
// whose kernels are longer than its share allows gets more.
func TestLongKernelsFreezeNoLongerThanTheLimit(t *testing.T) {
	long := func(share float64) Load {
		return Load{Share: share, Program: Program{Queue: 2 * time.Second, Kernel: 2 * time.Second}}
	}
	f := Run(Scenario{Loads: []Load{long(10), long(90)}, Warm: time.Minute, Long: 10 * time.Minute}, Variants()[1], Enforced, 1)
	if f.Shares[0] < 10 || f.Longest > 5*time.Second+10*ms {
		t.Errorf("it has %.1f %%; longest freeze %v", f.Shares[0], f.Longest)
	}
}

// TestIdleWhileWaitingIsMeasured compares the idle time that the scheduler reports with the engine's.
func TestIdleWhileWaitingIsMeasured(t *testing.T) {
	sc := Scenario{Loads: []Load{busy(30), busy(70)}, Warm: time.Millisecond, Long: 240 * time.Second}
	for _, v := range Variants()[:6] {
		f := Run(sc, v, Enforced, 3)
		idle := (100 - f.Busy) / 100 * sc.Long.Seconds()
		if got := f.Status.IdleWhileWaiting.Seconds(); math.Abs(got-idle) > 0.5+0.1*idle {
			t.Errorf("%s: reports %.2f s, the engine was idle for about %.2f s", v.Name, got, idle)
		}
	}
}

// TestOccupancyIsBusyTime checks that what is accounted to leases that are always busy is what the engine did for them.
func TestOccupancyIsBusyTime(t *testing.T) {
	const seeds = 8
	sc := Scenario{Loads: queues(0.3, []float64{30, 70}, 400*ms, 20*ms), Warm: time.Millisecond, Long: 300 * time.Second}
	for _, v := range Variants()[:6] {
		off := make([]float64, len(sc.Loads))
		for seed := range uint64(seeds) {
			f := Run(sc, v, Enforced, seed)
			for i, u := range f.Usage {
				off[i] += (100*u.Occupancy.Seconds()/sc.Long.Seconds() - f.Of[i]) / seeds
			}
		}
		for i := range off {
			if math.Abs(off[i]) > 0.9 {
				t.Errorf("%s: load %d: accounted %+.2f %% of the time more than it was busy", v.Name, i, off[i])
			}
		}
	}
}

// Short leases are no way around a share: what was owed, and what was learned in a trial, is that of the user with the grant, and goes on
// with the next lease. Four loops of leases of 2 s have what one lease of the same grant has.
func TestShortLeasesHaveTheShareOfOne(t *testing.T) {
	for _, v := range []Variant{Variants()[1], Variants()[3]} {
		for _, c := range []struct {
			long  time.Duration
			least float64
		}{
			{time.Second, 78}, // Four starts in a second queue 200 ms before their first freeze.
			{2 * time.Second, 87},
			{5 * time.Second, 87},
		} {
			long, loop := c.long, busy(10)
			loop.Grant, loop.Lease = "loops", long
			loads := []Load{busy(90)}
			for i := range 4 {
				one := loop
				one.From = time.Duration(i) * long / 4
				loads = append(loads, one)
			}
			f := Measure(Scenario{Loads: loads, Long: 120 * time.Second}, v, Enforced, 2)
			if t.Logf("%s, leases of %v: %.1f", v.Name, long, f.Of); f.Of[0] < c.least {
				t.Errorf("%s: next to four loops with leases of %v it has %.1f %% of the time, due are 90", v.Name, long, f.Of[0])
			}
		}
	}
}
