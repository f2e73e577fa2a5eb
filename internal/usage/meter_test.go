package usage

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

var noon = time.Date(2026, 2, 1, 12, 0, 0, 0, time.UTC)

// clock is the two clocks of a test, and the time that they began at.
type clock struct{ Moment }

func newClock() *clock { return &clock{Moment{Date: noon, Boot: time.Hour}} }

func (c *clock) pass(d time.Duration) { c.Date, c.Boot = c.Date.Add(d), c.Boot+d }

// The interval's times have no monotonic part: their distance is what counts.
func (c *clock) interval(l *Lease, id gpu.UUID, length time.Duration) Interval {
	to := time.Unix(0, 0).Add(c.Boot)
	return Interval{
		Subject: Subject{Lease: l.ID, Generation: l.Generation, Tenant: l.Tenant, Grant: l.Grant, User: l.User, GPU: id},
		From:    to.Add(-length),
		To:      to,
	}
}

func train(c *clock) Lease {
	return Lease{
		ID: "vision-train-x7k2", Generation: 7, Tenant: "vision", Grant: "train", User: "alice", GPUs: []gpu.UUID{"GPU-a"},
		Created: c.Date.Add(-3 * time.Second), Started: c.Date, Wait: 3 * time.Second, Facts: Facts{UID: 1000, Command: []string{"python"}},
	}
}

// distinct returns the records that count, as reading a file does.
func distinct(records ...[]Record) *Distinct {
	b := &Distinct{}
	for _, list := range records {
		for i := range list {
			b.Add(&list[i])
		}
	}
	return b
}

func sum(by By, b *Distinct) ([]Row, Amounts) {
	s := NewSums(by, time.Unix(0, 0), time.Unix(1<<40, 0))
	for i := range b.Records() {
		s.Add(&b.Records()[i])
	}
	return s.Rows()
}

func TestMeterAddsUp(t *testing.T) {
	c := newClock()
	m, l := NewMeter("a"), train(c)
	m.Start(l, c.Moment)
	half := 500 * time.Millisecond
	b := &Distinct{}
	for i := range 90 * 60 { // over an end of an hour
		c.pass(time.Second)
		x := c.interval(&l, "GPU-a", time.Second)
		x.Occupancy, x.Busy, x.Memory = &half, &Busy{
			Time:     250*time.Millisecond + 300*time.Microsecond,
			Variance: 0.0001,
		}, &Memory{
			Mean: 1 << 29,
			Peak: 3 << 29,
		}
		m.Record(&x, c.Moment)
		if i%50 == 0 {
			for _, r := range m.Take(c.Moment, AllLeases) {
				b.Add(&r)
			}
		}
	}
	three := 3
	m.End(l.ID, l.Generation, "the last process ended", "exited with 3", &three, c.Moment)
	for _, r := range m.Take(c.Moment, AllLeases) {
		b.Add(&r)
	}
	_, got := sum(By{}, b)
	want := Amounts{
		Held:           5_400_000,
		Occupancy:      2_700_000,
		OccupancyKnown: 5_400_000,
		Busy:           5400*250 + 1620,
		BusyKnown:      5_400_000,
		BusyVariance:   5400 * 100,
		Memory:         2_700_000,
		MemoryKnown:    5_400_000,
		Peak:           3 << 29,
		Starts:         1,
		Wait:           3000,
		LongestWait:    3000,
		Ends:           1,
		Exits:          map[string]int64{"3": 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := len(b.Records()); n != 4 { // a start, an end, two hours
		t.Errorf("%d records count, want 4", n)
	}
	c.pass(lateness + 1)
	m.Take(c.Moment, AllLeases)
	if len(m.Take(c.Moment, AllLeases)) != 0 {
		t.Error("an ended lease is still recorded")
	}
}

// A lease whose start was not written counts once, with the time since its start, also if its start was written after all.
func TestStartThatWasNotWritten(t *testing.T) {
	c := newClock()
	l := train(c)
	killed := NewMeter("1")
	killed.Start(l, c.Moment)
	unwritten := killed.Take(c.Moment, StartsAndEnds)
	c.pass(20 * time.Second)
	m := NewMeter("2")
	if ends := m.Recover(nil, []Lease{l}, true, "", c.Moment); len(ends) > 0 {
		t.Errorf("ends: %+v", ends)
	}
	c.pass(10 * time.Second)
	records := m.Take(c.Moment, StartsAndEnds)
	want := Amounts{Held: 30_000, Starts: 1, Wait: 3000, LongestWait: 3000}
	for name, b := range map[string]*Distinct{"not written": distinct(records), "written after all": distinct(unwritten, records)} {
		if _, got := sum(By{}, b); cmp.Diff(want, got) != "" {
			t.Errorf("%s: %s", name, cmp.Diff(want, got))
		}
	}
	// The next run goes on with it.
	next := NewMeter("3")
	c.pass(time.Second)
	next.Recover(FindUnfinished(records), []Lease{l}, true, "", c.Moment)
	want.Held = 31_000
	if _, got := sum(By{}, distinct(records, next.Take(c.Moment, AllLeases))); cmp.Diff(want, got) != "" {
		t.Error(cmp.Diff(want, got))
	}
}

func TestWhatIsReportedIsBounded(t *testing.T) {
	hour := time.Hour
	for _, c := range []struct {
		name string
		give func(*Interval)
		want Amounts
	}{
		{"longer than the lease runs", func(i *Interval) {
			i.From = i.To.Add(-100 * time.Second)
			i.Busy, i.Memory = &Busy{Time: 50 * time.Second, Variance: 4}, &Memory{Mean: 1 << 30}
		}, Amounts{BusyKnown: 10_000, Busy: 5000, BusyVariance: 40_000, Memory: 10_000, MemoryKnown: 10_000}},
		{"more than its length", func(i *Interval) { i.Busy, i.Occupancy = &Busy{Time: hour}, &hour }, Amounts{BusyKnown: 10_000, Busy: 10_000, Occupancy: 10_000, OccupancyKnown: 10_000}},
		{"negative", func(i *Interval) { i.Busy = &Busy{Time: -hour, Variance: -1} }, Amounts{BusyKnown: 10_000, BusyVariance: 100_000_000}},
		{"no number", func(i *Interval) { i.Busy = &Busy{Variance: math.NaN()} }, Amounts{BusyKnown: 10_000, BusyVariance: 100_000_000}},
		{"it ends before it begins", func(i *Interval) { i.From, i.Busy = i.To.Add(hour), &Busy{Time: 1} }, Amounts{}},
		{"another GPU", func(i *Interval) { i.GPU, i.Busy = "GPU-b", &Busy{Time: 1} }, Amounts{}},
		{"another generation", func(i *Interval) { i.Generation, i.Busy = 8, &Busy{Time: 1} }, Amounts{}},
		{"all memory there can be", func(i *Interval) { i.Memory = &Memory{Mean: math.MaxUint64, Peak: math.MaxUint64} }, Amounts{MemoryKnown: 10_000, Memory: 171798691839999, Peak: math.MaxInt64}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newClock()
			m, l := NewMeter("a"), train(k)
			m.Start(l, k.Moment)
			k.pass(10 * time.Second)
			x := k.interval(&l, "GPU-a", 10*time.Second)
			c.give(&x)
			m.Record(&x, k.Moment)
			m.Record(&x, k.Moment) // a second time it changes nothing
			_, got := sum(By{}, distinct(m.Take(k.Moment, AllLeases)))
			c.want.Held, c.want.Starts, c.want.Wait, c.want.LongestWait = 10_000, 1, 3000, 3000
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The system clock may be set to anything: no time is lost, and none is negative or counted twice.
func TestJumpsOfTheWallClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		m, l := NewMeter("a"), train(c)
		l.Exclusive = true
		m.Start(l, c.Moment)
		b, truth := &Distinct{}, time.Duration(0)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			d := time.Duration(rapid.IntRange(0, 100_000).Draw(t, "ms")) * time.Millisecond
			c.pass(d)
			truth += d
			c.Date = c.Date.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 0, -3600, 3600, -1e8, 1e8, 1}).Draw(t, "jump")) * time.Second)
			if rapid.Bool().Draw(t, "interval") {
				x := c.interval(&l, "GPU-a", d)
				x.Busy = &Busy{Time: d}
				m.Record(&x, c.Moment)
			}
			for _, r := range m.Take(c.Moment, AllLeases) {
				b.Add(&r)
			}
		}
		for i := range b.Records() {
			if r := &b.Records()[i]; r.Held < 0 || r.Busy < 0 || r.Busy > r.BusyKnown || r.Elapsed < 0 {
				t.Fatalf("record %+v", r)
			}
		}
		if _, got := sum(By{}, b); got.Held != truth.Milliseconds() || got.Occupancy != got.Held || got.BusyKnown > got.Held {
			t.Fatalf("%+v of %v", got, truth)
		}
	})
}

func free(string) bool { return false }

func TestIdle(t *testing.T) {
	second := func(busy time.Duration, deviation float64) *Busy {
		return &Busy{Time: busy, Variance: deviation * deviation}
	}
	for _, c := range []struct {
		name string
		busy func(i int) *Busy // of each second
		for_ int               // seconds
		idle time.Duration
		seen bool
	}{
		{"no kernels", func(int) *Busy { return second(0, 0) }, 120, 120 * time.Second, true},
		{"busy", func(int) *Busy { return second(500*time.Millisecond, 0.1) }, 120, 0, true},
		{"below one percent and its error", func(int) *Busy { return second(5*time.Millisecond, 0.1) }, 120, 120 * time.Second, true},
		{"below one percent, above its error", func(int) *Busy { return second(5*time.Millisecond, 0.001) }, 120, 0, true},
		{"one kernel", func(i int) *Busy { return second(map[bool]time.Duration{i == 65: 200 * time.Millisecond}[true], 0) }, 120, 50 * time.Second, true},
		{"never measured", func(int) *Busy { return nil }, 120, 0, false},
		{"not measured for a while", func(i int) *Busy {
			if i > 30 && i <= 60 {
				return nil
			}
			return second(0, 0)
		}, 120, 90 * time.Second, true},
		{"no longer measured", func(i int) *Busy {
			if i > 30 {
				return nil
			}
			return second(0, 0)
		}, 120, 30 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newClock()
			m, l := NewMeter("a"), train(k)
			m.Start(l, k.Moment)
			var last []Idle
			for i := 1; i <= c.for_; i++ {
				k.pass(time.Second)
				x := k.interval(&l, "GPU-a", time.Second)
				x.Busy = c.busy(i)
				m.Record(&x, k.Moment)
				last = m.UpdateIdle(k.Moment, free)
			}
			if want := (Idle{l.ID, l.Generation, c.idle, c.seen}); len(last) != 1 || last[0] != want {
				t.Errorf("got %+v, want %+v", last, want)
			}
		})
	}
}

// A lease on two GPUs is idle when both are.
func TestIdleOnSeveralGPUs(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b *Busy
		want time.Duration
	}{
		{"both idle", &Busy{}, &Busy{}, time.Minute},
		{"one busy", &Busy{}, &Busy{Time: time.Second}, 0},
		{"one not measured", &Busy{}, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newClock()
			m, l := NewMeter("a"), train(k)
			l.GPUs = []gpu.UUID{"GPU-a", "GPU-b"}
			m.Start(l, k.Moment)
			var last []Idle
			for range 60 {
				k.pass(time.Second)
				for id, busy := range map[gpu.UUID]*Busy{"GPU-a": c.a, "GPU-b": c.b} {
					x := k.interval(&l, id, time.Second)
					x.Busy = busy
					m.Record(&x, k.Moment)
				}
				last = m.UpdateIdle(k.Moment, free)
			}
			if last[0].Time != c.want {
				t.Errorf("idle for %v, want %v", last[0].Time, c.want)
			}
		})
	}
}

// 64 leases are sampled once a second.
func BenchmarkRecord(b *testing.B) {
	c := newClock()
	m, l := NewMeter("a"), train(c)
	m.Start(l, c.Moment)
	busy, occupancy := &Busy{Time: time.Second / 2, Variance: 0.01}, time.Second/2
	b.ReportAllocs()
	for b.Loop() {
		c.pass(time.Second)
		x := c.interval(&l, "GPU-a", time.Second)
		x.Busy, x.Occupancy, x.Memory = busy, &occupancy, &Memory{Mean: 1 << 30, Peak: 1 << 30}
		m.Record(&x, c.Moment)
	}
}

// A start or an end of one lease does not write what all others use.
func TestStartsAndEndsAlone(t *testing.T) {
	k := newClock()
	m := NewMeter("a")
	for i := range 3 {
		l := train(k)
		l.Generation = uint64(i)
		m.Start(l, k.Moment)
	}
	if n := len(m.Take(k.Moment, AllLeases)); n != 6 {
		t.Errorf("%d records of three starts", n)
	}
	k.pass(time.Minute)
	l := train(k)
	l.Generation = 9
	m.Start(l, k.Moment)
	m.End(l.ID, 0, "", "", nil, k.Moment)
	got := map[Kind]int{}
	for _, r := range m.Take(k.Moment, StartsAndEnds) {
		got[r.Kind]++
		if r.Generation != 9 && r.Generation != 0 {
			t.Errorf("a record of another lease: %+v", r)
		}
	}
	if got[KindStart] != 1 || got[KindUse] != 2 || got[KindEnd] != 1 {
		t.Errorf("got %v", got)
	}
	if n := len(m.Take(k.Moment, StartsAndEnds)); n != 2 { // The one that ended may have more.
		t.Errorf("%d records afterwards", n)
	}
}

// What a lease uses after a rename is under the new name, what it used before stays under the former one, and nothing is lost or twice.
func TestRenamedLease(t *testing.T) {
	c, m := newClock(), NewMeter("run")
	l := train(c)
	m.Start(l, c.Moment)
	c.pass(10 * time.Minute)
	m.Rename(l.ID, l.Generation, "vision", "train", c.Moment) // as it is called
	m.Rename(l.ID, l.Generation, "imaging", "large", c.Moment)
	c.pass(5 * time.Minute)
	m.End(l.ID, l.Generation, "", "", nil, c.Moment)
	held := map[string]int64{}
	for _, r := range distinct(m.Take(c.Moment, AllLeases)).Records() {
		held[r.Tenant+"/"+r.Grant] += r.Held
	}
	want := map[string]int64{"vision/train": (10 * time.Minute).Milliseconds(), "imaging/large": (5 * time.Minute).Milliseconds()}
	if diff := cmp.Diff(want, held); diff != "" {
		t.Errorf("held is (-want +got):\n%s", diff)
	}
}
