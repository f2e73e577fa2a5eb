package quota

import (
	"testing"
	"time"
)

// gpuOf runs a scheduler with leases whose use is a function of time and of who is frozen, and counts for how long each is frozen.
type gpuOf struct {
	s      *Scheduler
	use    func(frozen map[string]bool) map[string]float64
	every  time.Duration // between two answers of the driver; 0: it does not answer
	series bool
	each   func()

	now, read time.Duration
	frozen    map[string]bool
	at, froze map[string]time.Duration
}

func newGPUOf(list []Member, use func(frozen map[string]bool) map[string]float64) *gpuOf {
	g := &gpuOf{
		s:      NewScheduler(Config{Fallback: true}),
		use:    use,
		every:  time.Second,
		each:   func() {},
		frozen: map[string]bool{},
		at:     map[string]time.Duration{},
		froze:  map[string]time.Duration{},
	}
	g.s.SetMembers(0, list)
	return g
}

func (g *gpuOf) run(length time.Duration) {
	for end := g.now + length; g.now < end; g.each() {
		switch a := g.s.Next(g.now); a.Kind {
		case Freeze:
			g.frozen[a.Lease], g.at[a.Lease] = true, g.now
			g.s.Froze(a.Lease, g.now, 0, nil)
		case Thaw:
			g.frozen[a.Lease] = false
			g.froze[a.Lease] += g.now - g.at[a.Lease]
			g.s.Thawed(a.Lease, g.now, 0, nil)
		case Wait:
			if g.now = min(a.Until, end); g.every != 0 {
				g.now = min(g.now, g.read+g.every)
			}
		}
		if g.every != 0 && g.now >= g.read+g.every {
			g.observe()
		}
	}
}

func (g *gpuOf) observe() {
	use, sum := g.use(g.frozen), 0.0
	for _, x := range use {
		sum += x
	}
	g.s.ObserveProcesses(g.now, g.read, g.now, use)
	if g.series {
		u := Utilization{From: g.read, UpTo: g.now}
		for at := g.read + 139*time.Millisecond; at <= g.now; at += 139 * time.Millisecond {
			u.Periods = append(u.Periods, Period{End: at, Busy: min(1, sum)})
		}
		g.s.ObserveUtilization(g.now, u)
	}
	g.read = g.now
}

// A lease with low latency that was hungry ends, does nothing, or has low latency no more, or the driver ceases to answer: what it needed
// for itself then freezes no other lease.
func TestClearingEndsWithItsReason(t *testing.T) {
	a := Member{Lease: "a", Grant: "a", Share: 10, Active: true}
	c := Member{Lease: "c", Grant: "c", Share: 50, Active: true, LowLatency: true}
	for name, end := range map[string]func(g *gpuOf, c Member){
		"it ended":           func(g *gpuOf, _ Member) { g.s.SetMembers(g.now, []Member{a}) },
		"it does nothing":    func(g *gpuOf, c Member) { c.Active = false; g.s.SetMembers(g.now, []Member{a, c}) },
		"it is as any other": func(g *gpuOf, c Member) { c.Active, c.LowLatency = false, false; g.s.SetMembers(g.now, []Member{a, c}) },
		"no answer":          func(g *gpuOf, _ Member) { g.every = 0 },
	} {
		for _, every := range []time.Duration{time.Second, 5 * time.Second, 0} {
			g := newGPUOf([]Member{a, c}, nil)
			g.use = func(map[string]bool) map[string]float64 {
				u := g.s.clearing.part + (1-g.s.clearing.part)*0.5
				return map[string]float64{"a": 1 - u, "c": u}
			}
			g.run(30 * time.Second)
			if g.s.clearing.part == 0 || g.froze["a"] < 5*time.Second {
				t.Fatalf("%s: a was frozen for %v: it does not show anything", name, g.froze["a"])
			}
			g.every = every
			end(g, c)
			g.use = func(map[string]bool) map[string]float64 { return map[string]float64{"a": 1} }
			g.run(2*sensorTimeout + time.Second) // Without an answer the last one counts for a while.
			was := g.froze["a"]
			g.run(5 * time.Minute)
			if more := g.froze["a"] - was; more != 0 {
				t.Errorf("%s, an answer each %v: a is frozen for %v more", name, every, more)
			}
		}
	}
}

// A lease with low latency next to leases that use less than their shares has slices when it uses more than its own: those that run next
// to the slices count as others.
func TestLowLatencyNextToLightLeases(t *testing.T) {
	a := Member{Lease: "a", Grant: "a", Share: 10, Active: true, LowLatency: true}
	b := Member{Lease: "b", Grant: "b", Share: 90, Active: true}
	g := newGPUOf([]Member{a, b}, func(map[string]bool) map[string]float64 { return map[string]float64{"a": 0.05, "b": 0.3} })
	g.series = true
	g.run(time.Minute)
	g.use = func(frozen map[string]bool) map[string]float64 {
		switch {
		case frozen["a"]:
			return map[string]float64{"b": 1}
		case frozen["b"]:
			return map[string]float64{"a": 1}
		}
		return map[string]float64{"a": 0.9, "b": 0.1}
	}
	over := false
	g.each = func() { over = over || g.s.find("a").demand.class == heavy }
	g.run(2 * time.Minute)
	if !over || g.froze["a"] < 10*time.Second {
		t.Errorf("a uses nine times its share: it is over its share %v, and was frozen for %v", over, g.froze["a"])
	}
}

// A lease each of whose trials is interrupted is classified nevertheless.
func TestInterruptedTrials(t *testing.T) {
	for _, series := range []bool{false, true} {
		list := []Member{
			{Lease: "a", Grant: "a", Share: 10, Active: true},
			{Lease: "b", Grant: "b", Share: 10, Active: true},
			{Lease: "d", Grant: "d", Share: 10, Active: true},
		}
		g := newGPUOf(list[:2], func(map[string]bool) map[string]float64 { return map[string]float64{"a": 0.5, "b": 0.5} })
		g.series = series
		g.run(30 * time.Second)
		g.s.SetMembers(g.now, list)
		g.use = func(map[string]bool) map[string]float64 { return map[string]float64{"a": 0.25, "b": 0.25, "d": 0.5} }
		cuts := 0
		g.each = func() {
			if g.s.phase != sliceRuns || !g.s.inTrial() || g.s.set[0].Lease != "d" {
				return
			}
			cuts++
			for _, active := range []bool{false, true} {
				list[2].Active = active
				g.s.SetMembers(g.now, list)
				g.s.Next(g.now)
			}
		}
		g.run(2 * time.Minute)
		if c := g.s.find("d").demand.class; c == measured || cuts == 0 {
			t.Errorf("series %v: after %d trials that were interrupted it is %v", series, cuts, c)
		}
	}
}

// A frozen lease that is removed is known until it is thawed.
func TestRemovedLeaseIsFrozenUntilItIsThawed(t *testing.T) {
	s := NewScheduler(Config{})
	list := []Member{{Lease: "a", Grant: "a", Share: 50, Active: true}, {Lease: "b", Grant: "b", Share: 50, Active: true}}
	s.SetMembers(0, list)
	var now time.Duration
	for len(s.FrozenLeases()) == 0 {
		a := s.Next(now)
		switch a.Kind {
		case Freeze:
			s.Froze(a.Lease, now, 0, nil)
		case Thaw:
			s.Thawed(a.Lease, now, 0, nil)
		case Wait:
			now = a.Until
			s.ObserveProcesses(now, now-time.Millisecond, now, map[string]float64{"a": 0.5, "b": 0.5})
		}
	}
	frozen := s.FrozenLeases()
	s.SetMembers(now, nil)
	if got := s.FrozenLeases(); len(got) != 1 || got[0] != frozen[0] {
		t.Errorf("frozen are %q, want %q", got, frozen)
	}
	s.Thawed(frozen[0], now, 0, nil)
	if got := s.FrozenLeases(); len(got) != 0 {
		t.Errorf("frozen are %q after the thaw", got)
	}
}
