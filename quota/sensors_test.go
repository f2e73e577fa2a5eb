package quota

import (
	"testing"
	"time"
)

// bound is a scheduler with two leases that both have work, and a clock in steps of a second.
type bound struct {
	s       *Scheduler
	now     time.Duration
	sampled time.Duration // the end of the last sample
	rows    time.Duration // up to here the samples of processes are known
}

func newBound() *bound {
	s := NewScheduler(Config{})
	s.SetMembers(0, []Member{{Lease: "a", Share: 1, Active: true}, {Lease: "b", Share: 1, Active: true}})
	return &bound{s: s}
}

// second lets a second pass, with samples of a busy GPU each period; 0: without one.
func (b *bound) second(period time.Duration, busy map[string]float64) {
	end := b.now + time.Second
	for b.now < end {
		a := b.s.Next(b.now)
		switch a.Kind {
		case Freeze:
			b.s.Froze(a.Lease, b.now, 0, nil)
		case Thaw:
			b.s.Thawed(a.Lease, b.now, 0, nil)
		case Renew:
		case Wait:
			b.now = min(a.Until, end)
		}
	}
	u := Utilization{From: b.now - time.Second, UpTo: b.now}
	for period != 0 && b.sampled+period <= b.now {
		b.sampled += period
		u.Periods = append(u.Periods, Period{End: b.sampled, Busy: 1})
	}
	b.s.ObserveUtilization(b.now, u)
	b.s.ObserveProcesses(b.now, b.rows, b.now, busy)
	b.rows = b.now
}

// TestSamplerPeriodIsMeasured checks that a scheduler measures how often the driver samples, and takes the way without a series where
// that is too seldom, in both directions.
func TestSamplerPeriodIsMeasured(t *testing.T) {
	both := map[string]float64{"a": 0.5, "b": 0.5}
	for _, period := range []time.Duration{ms(97), ms(139), ms(155), ms(200), ms(500), ms(1000)} {
		b := newBound()
		for range 12 {
			b.second(period, both)
		}
		st := b.s.Status()
		if slow := period > longestPeriod; st.SlowSampler != slow || st.Period != period {
			t.Errorf("samples each %v: %+v", period, st)
		}
		if st.IdleWhileWaiting != 0 {
			t.Errorf("samples each %v of a busy GPU: it was idle for %v", period, st.IdleWhileWaiting)
		}
		if !st.Enforced {
			t.Errorf("samples each %v: %+v", period, st)
		}
		if period == ms(1000) && (st.Exact != exactSlow || b.s.round() != 2*time.Second) {
			t.Errorf("samples each %v: exact to %v points, rounds of %v", period, st.Exact, b.s.round())
		}
	}
	b := newBound()
	for range 12 {
		b.second(time.Second, both)
	}
	for range 3 {
		b.second(ms(139), both)
	}
	if st := b.s.Status(); st.SlowSampler {
		t.Errorf("samples each 139 ms after a slow start: %+v", st)
	}
	for range 30 {
		b.second(ms(500), both)
	}
	if st := b.s.Status(); !st.SlowSampler {
		t.Errorf("samples each 500 ms for a long time: %+v", st)
	}
}

// TestMissingSamplesAreNotIdleTime checks that a series that stops while the processes have work is not read as an idle GPU, that the
// scheduler goes on without it, and that what was before it continues is unknown.
func TestMissingSamplesAreNotIdleTime(t *testing.T) {
	both := map[string]float64{"a": 0.5, "b": 0.5}
	b := newBound()
	for range 20 {
		b.second(ms(139), both)
	}
	if !b.s.hasSeries() {
		t.Fatal("no series")
	}
	for range 60 {
		b.second(0, both)
	}
	st := b.s.Status()
	if b.s.hasSeries() || st.IdleWhileWaiting != 0 || !st.Enforced || st.Exact != exactWithoutSeries {
		t.Errorf("without samples for a minute: series %v, %+v", b.s.hasSeries(), st)
	}
	b.sampled = b.now - ms(500)
	for range 3 {
		b.second(ms(139), both)
	}
	if st := b.s.Status(); !b.s.hasSeries() || st.IdleWhileWaiting != 0 || !st.Enforced {
		t.Errorf("after the series continued: series %v, %+v", b.s.hasSeries(), st)
	}
	// No process had work, and there is no sample: that is an idle GPU.
	for range 12 {
		b.second(0, nil)
	}
	for _, u := range b.s.Usage(b.now) {
		if !u.Idle {
			t.Errorf("%s has no work for 12 s: %+v", u.Lease, u)
		}
	}
}

// TestMissingRowsAreNotIdleProcesses checks that an answer without a row is no idle time where the driver samples seldom: leases with
// work do not become idle.
func TestMissingRowsAreNotIdleProcesses(t *testing.T) {
	b := newBound()
	for i := range 40 {
		rows := map[string]float64{"a": 1}
		switch i % 4 {
		case 1:
			rows = map[string]float64{"b": 1}
		case 2, 3:
			rows = nil // a sample each second, read just before and after it
		}
		b.second(time.Second, rows)
		for _, u := range b.s.Usage(b.now) {
			if u.Idle {
				t.Fatalf("after %d s: %+v", i, u)
			}
		}
	}
}

// TestAnIdleGPUKeepsNoPast checks that the first work after a long time without any, in which no sample shows the period, is not
// preceded by a period for each moment of that time.
func TestAnIdleGPUKeepsNoPast(t *testing.T) {
	b := newBound()
	for range 3 * 24 * 3600 {
		b.now += time.Second
		b.s.ObserveUtilization(b.now, Utilization{From: b.now - time.Second, UpTo: b.now})
	}
	b.sampled, b.rows = b.now, b.now
	most := 0
	for range 12 {
		b.second(ms(139), map[string]float64{"a": 0.5, "b": 0.5})
		for _, tr := range b.s.tracks {
			most = max(most, cap(tr.periods)+cap(tr.early)) // What is not needed is removed at once, and its memory stays.
		}
	}
	if most == 0 || most > 4096 {
		t.Errorf("there is memory for %d periods", most)
	}
}
