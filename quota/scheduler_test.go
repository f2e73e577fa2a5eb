package quota

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// busyWorker returns a worker whose queue is never empty.
func busyWorker(lease string, share float64) *worker {
	return &worker{lease: lease, share: share, depth: ms(20)}
}

func usageOf(t testing.TB, s *Scheduler, now time.Duration, lease string) Usage {
	t.Helper()
	for _, u := range s.Usage(now) {
		if u.Lease == lease {
			return u
		}
	}
	t.Fatalf("no usage of %s", lease)
	return Usage{}
}

func TestSingleLeaseIsNeverFrozen(t *testing.T) {
	m := newSim(t, Config{}, 1, busyWorker("a", 30))
	m.run(20 * time.Second)
	if m.freezes != 0 {
		t.Errorf("%d freezes", m.freezes)
	}
	if u := usageOf(t, m.s, m.now, "a"); u.Occupancy != m.now || u.Recent != 1 || u.Entitled != 1 {
		t.Errorf("usage %+v after %v", u, m.now)
	}
	if st := m.s.Status(); st.Enforced || st.Reason == "" {
		t.Errorf("status %+v", st)
	}
}

func TestRemovedLeaseThawsTheOthers(t *testing.T) {
	a, b := busyWorker("a", 30), busyWorker("b", 70)
	m := newSim(t, Config{}, 1, a, b)
	m.run(5*time.Second + 100*time.Millisecond)
	if !m.s.Status().Enforced || a.frozen == b.frozen {
		t.Fatalf("not enforced: a frozen %v, b frozen %v", a.frozen, b.frozen)
	}
	m.ws = []*worker{a}
	b.frozen = false // its processes have ended
	m.s.SetMembers(m.now, []Member{{Lease: "a", Grant: "a", Share: 30, Active: true}})
	m.s.Thawed("b", m.now, 0, nil)
	m.wake = 0
	m.run(tick)
	if a.frozen || m.s.Status().Enforced {
		t.Error("a is still frozen although it is alone")
	}
	if len(m.s.Usage(m.now)) != 1 {
		t.Error("b is not removed")
	}
}

func TestLeasesOfOneGrantDivideItsShare(t *testing.T) {
	m := newSim(t, Config{}, 1, busyWorker("a1", 1), busyWorker("a2", 1), busyWorker("b", 1))
	m.s.SetMembers(0, []Member{
		{Lease: "a1", Grant: "a", Share: 40, Active: true},
		{Lease: "a2", Grant: "a", Share: 40, Active: true},
		{Lease: "b", Grant: "b", Share: 60, Active: true},
	})
	m.run(20 * time.Second)
	busy, total := m.run(60 * time.Second)
	for i, want := range []float64{0.2, 0.2, 0.6} {
		if got := float64(busy[i]) / float64(total); math.Abs(got-want) > 0.02 {
			t.Errorf("%s has %.3f, want %.2f", m.ws[i].lease, got, want)
		}
	}
}

func TestCap(t *testing.T) {
	quarter := 0.25
	t.Run("alone", func(t *testing.T) {
		a := busyWorker("a", 50)
		a.cap = &quarter
		m := newSim(t, Config{}, 1, a)
		m.run(20 * time.Second)
		busy, _ := m.run(60 * time.Second)
		if got := float64(busy[0]) / float64(60*time.Second); math.Abs(got-0.25) > 0.02 {
			t.Errorf("has %.3f of the GPU, its cap is 0.25; %+v", got, m.s.Usage(m.now))
		}
	})
	t.Run("the others take what is left", func(t *testing.T) {
		a := busyWorker("a", 80)
		a.cap = &quarter
		m := newSim(t, Config{}, 1, a, busyWorker("b", 20))
		m.run(20 * time.Second)
		busy, _ := m.run(60 * time.Second)
		if got := float64(busy[0]) / float64(60*time.Second); math.Abs(got-0.25) > 0.03 {
			t.Errorf("a has %.3f of the GPU, its cap is 0.25", got)
		}
		if got := float64(busy[1]) / float64(60*time.Second); got < 0.68 {
			t.Errorf("b has %.3f of the GPU", got)
		}
	})
}

func TestIdleLeaseDelaysNoOther(t *testing.T) {
	lazy := &worker{lease: "lazy", share: 50, work: ms(1), host: time.Hour, think: time.Hour}
	m := newSim(t, Config{}, 1, lazy, busyWorker("b", 50))
	m.run(20 * time.Second)
	busy, total := m.run(20 * time.Second)
	if float64(busy[1]) < 0.99*float64(20*time.Second) || total > 20*time.Second {
		t.Errorf("b has %v of 20 s", busy[1])
	}
	if u := usageOf(t, m.s, m.now, "lazy"); !u.Idle {
		t.Errorf("usage %+v", u)
	}
	// It becomes busy and gets its share.
	lazy.work, lazy.depth, lazy.limit = 0, ms(20), ms(20)
	m.run(5 * time.Second)
	busy, total = m.run(30 * time.Second)
	if got := float64(busy[0]) / float64(total); math.Abs(got-0.5) > 0.03 {
		t.Errorf("the lease that became busy has %.3f", got)
	}
}

func TestUnfilledSlicesFallBack(t *testing.T) {
	run := func(fallback bool) (float64, Status) {
		m := newSim(t, Config{Fallback: fallback}, 1, &worker{lease: "sync", share: 50, work: ms(10), host: ms(30)}, busyWorker("b", 50))
		m.run(45 * time.Second)
		_, total := m.run(30 * time.Second)
		return float64(total) / float64(30*time.Second), m.s.Status()
	}
	if busy, st := run(false); busy > 0.7 || !st.Enforced {
		t.Errorf("without fallback the GPU is %.2f busy, %+v", busy, st)
	}
	if busy, st := run(true); busy < 0.95 || st.Enforced || st.Reason == "" {
		t.Errorf("with fallback the GPU is %.2f busy, %+v", busy, st)
	}
}

func TestConcurrentOnlyAccounts(t *testing.T) {
	m := newSim(t, Config{Concurrent: true}, 1, busyWorker("a", 10), busyWorker("b", 90))
	m.run(10 * time.Second)
	if m.freezes != 0 {
		t.Errorf("%d freezes", m.freezes)
	}
	if u := usageOf(t, m.s, m.now, "a"); u.Occupancy != 5*time.Second {
		t.Errorf("usage %+v", u)
	}
}

func TestSliceWaitsForItsBacklog(t *testing.T) {
	s := NewScheduler(Config{})
	s.SetMembers(0, []Member{{Lease: "a", Share: 1, Active: true}, {Lease: "b", Share: 1, Active: true}})
	for _, m := range s.members {
		m.backlog.estimate = 300 * time.Millisecond
	}
	now := time.Duration(0)
	// do carries out actions until the phase is reached.
	do := func(want phase) {
		for range 20 {
			a := s.Next(now)
			switch a.Kind {
			case Freeze:
				s.Froze(a.Lease, now, 0, nil)
			case Thaw:
				s.Thawed(a.Lease, now, 0, nil)
			case Wait:
				if s.phase == want {
					return
				}
				now = a.Until
			}
		}
		t.Fatalf("never in phase %v", want)
	}
	do(backlogRuns)
	first := s.current.Lease
	a := s.Next(now)
	if a.Kind != Wait || a.Until != now+300*time.Millisecond {
		t.Fatalf("during the backlog: %+v at %v", a, now)
	}
	if a := s.Next(now + 300*time.Millisecond); a.Kind != Thaw || a.Lease == first {
		t.Errorf("after the backlog: %+v", a)
	}
}

// TestFailuresFailOpen checks that a lease that cannot be frozen keeps running and that the others still share.
func TestFailuresFailOpen(t *testing.T) {
	s := NewScheduler(Config{})
	s.SetMembers(0, []Member{{Lease: "a", Share: 1, Active: true}, {Lease: "stone", Share: 1, Active: true}, {Lease: "z", Share: 1, Active: true}})
	frozen := map[string]bool{}
	now, tries := time.Duration(0), 0
	for now < 30*time.Second {
		a := s.Next(now)
		switch a.Kind {
		case Freeze:
			var err error
			if a.Lease == "stone" {
				tries++
				err = errors.New("still not frozen after 20 ms")
			}
			frozen[a.Lease] = true
			s.Froze(a.Lease, now, 0, err)
		case Thaw:
			frozen[a.Lease] = false
			s.Thawed(a.Lease, now, 0, nil)
		case Wait:
			if frozen["stone"] {
				t.Fatalf("at %v a lease whose freeze failed is not thawed", now)
			}
			now = a.Until
		}
	}
	if tries != 3 {
		t.Errorf("tried %d times in 30 s, want 3", tries)
	}
	if u := usageOf(t, s, now, "stone"); !u.Unfreezable {
		t.Errorf("usage %+v", u)
	}
	a, z := usageOf(t, s, now, "a"), usageOf(t, s, now, "z")
	if a.Slices < 10 || z.Slices < 10 {
		t.Errorf("a %+v, z %+v", a, z)
	}
}

// TestShareErrorBeatsAliasing checks rounds at multiples of the sample period: without dither they would mislead the
// estimates of the backlog.
func TestShareErrorBeatsAliasing(t *testing.T) {
	for _, round := range []time.Duration{ms(556), ms(1112)} {
		ws := []*worker{{lease: "a", share: 30, depth: ms(200)}, {lease: "b", share: 70, depth: ms(50)}}
		m := newSim(t, Config{Round: round}, 3, ws...)
		m.run(60 * time.Second)
		busy, _ := m.run(60 * time.Second)
		if w, _ := bias(busy, ws); w > 2.5 {
			t.Errorf("round %v: error %.1f points", round, w)
		}
	}
}

// TestSchedulerInvariants runs the scheduler with random leases, delays, failures and stalls, and checks its invariants.
func TestSchedulerInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := 3 * time.Second
		s := NewScheduler(Config{MaxFrozen: most, Rand: func() float64 { return rapid.Float64Range(0, 0.999).Draw(t, "dither") }})
		type state struct {
			m      Member
			frozen bool
			since  time.Duration
		}
		leases := map[string]*state{}
		now := time.Duration(0)
		set := func() {
			var list []Member
			for _, id := range []string{"a", "b", "c", "d", "e"} {
				if st := leases[id]; st != nil {
					list = append(list, st.m)
				}
			}
			s.SetMembers(now, list)
		}
		occupied := map[string]time.Duration{}
		waits, stalls := 0, 0
		for range rapid.IntRange(20, 300).Draw(t, "events") {
			switch rapid.IntRange(0, 15).Draw(t, "event") {
			case 0:
				id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "lease")
				m := Member{Lease: id, Grant: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "grant"), Share: float64(rapid.IntRange(1, 100).Draw(t, "share")), Active: rapid.Bool().Draw(t, "active"), NeverFreeze: rapid.IntRange(0, 5).Draw(t, "ungated") == 0}
				if rapid.IntRange(0, 4).Draw(t, "capped") == 0 {
					c := float64(rapid.IntRange(5, 100).Draw(t, "cap")) / 100
					m.Cap = &c
				}
				if leases[id] == nil {
					leases[id] = &state{}
				}
				leases[id].m = m
				set()
			case 1:
				var xs []Sample
				for id := range leases {
					if rapid.Bool().Draw(t, "sampled") {
						xs = append(xs, Sample{id, now})
					}
				}
				s.Observe(now, now, xs)
			case 2:
				now += time.Duration(rapid.IntRange(0, 10000).Draw(t, "stall")) * time.Millisecond
				stalls++
			default:
				a := s.Next(now)
				st := leases[a.Lease]
				duration := time.Duration(rapid.IntRange(0, 2000).Draw(t, "duration")) * time.Microsecond
				switch a.Kind {
				case Wait:
					if a.Until <= now {
						t.Fatalf("at %v the wait ends at %v: %s", now, a.Until, a.Reason)
					}
					active := 0
					for _, x := range leases {
						if x.m.Active && !x.m.NeverFreeze {
							active++
						}
						if x.frozen && (!x.m.Active || x.m.NeverFreeze) {
							t.Fatalf("%s is frozen and does not participate", x.m.Lease)
						}
						if x.frozen && a.Until > x.since+most && stalls == 0 {
							t.Fatalf("at %v %s would be frozen until %v, since %v: %s", now, x.m.Lease, a.Until, x.since, a.Reason)
						}
					}
					for _, x := range leases {
						if x.frozen && active == 1 && x.m.Cap == nil {
							t.Fatalf("%s is alone and frozen", x.m.Lease)
						}
					}
					waits++
					now = a.Until
				case Freeze:
					if st == nil || st.frozen || !st.m.Active || st.m.NeverFreeze {
						t.Fatalf("freezes %q: %+v", a.Lease, st)
					}
					if a.Until != now+most {
						t.Fatalf("freezes until %v at %v", a.Until, now)
					}
					now += duration
					st.frozen, st.since = true, now
					var err error
					if rapid.IntRange(0, 19).Draw(t, "fails") == 0 {
						err = errors.New("did not freeze")
					}
					s.Froze(a.Lease, now, duration, err)
				case Thaw:
					if st == nil || !st.frozen {
						t.Fatalf("thaws %q: %+v", a.Lease, st)
					}
					now += duration
					st.frozen = false
					s.Thawed(a.Lease, now, duration, nil)
				}
			}
			var sum time.Duration
			for _, u := range s.Usage(now) {
				if u.Occupancy < occupied[u.Lease] || u.Recent < 0 || u.Recent > 1.0001 {
					t.Fatalf("usage %+v", u)
				}
				occupied[u.Lease] = u.Occupancy
			}
			for _, d := range occupied {
				sum += d
			}
			if sum > now {
				t.Fatalf("occupancy sums to %v in %v", sum, now)
			}
		}
	})
}

// TestNoLeaseStarves checks that every lease runs within MaxFrozen, however unequal the shares and however long the queues.
func TestNoLeaseStarves(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 5).Draw(rt, "leases")
		var ws []*worker
		for i := range n {
			ws = append(ws, &worker{lease: fmt.Sprintf("lease-%d", i), share: float64(rapid.IntRange(1, 100).Draw(rt, "share")), depth: ms(rapid.IntRange(1, 500).Draw(rt, "queue"))})
		}
		m := newSim(t, Config{}, rapid.Uint64().Draw(rt, "seed"), ws...)
		m.switchTime = time.Duration(rapid.IntRange(0, 1000).Draw(rt, "switch time")) * time.Microsecond
		m.run(8 * time.Second)
		busy, _ := m.run(12 * time.Second)
		for i, w := range ws {
			longest := w.longestFrozen
			if w.frozen {
				longest = max(longest, m.now-w.frozenAt)
			}
			if longest > 5*time.Second || busy[i] == 0 {
				rt.Errorf("%s (share %v, queue %v) was frozen for %v and ran for %v of 12 s", w.lease, w.share, w.depth, longest, busy[i])
			}
		}
	})
}

func BenchmarkNext(b *testing.B) {
	s := NewScheduler(Config{Rand: func() float64 { return 0.5 }})
	var list []Member
	for i := range 8 {
		list = append(list, Member{Lease: fmt.Sprint(i), Grant: fmt.Sprint(i), Share: float64(i + 1), Active: true})
	}
	s.SetMembers(0, list)
	var now time.Duration
	b.ReportAllocs()
	for b.Loop() {
		switch a := s.Next(now); a.Kind {
		case Freeze:
			s.Froze(a.Lease, now, 0, nil)
		case Thaw:
			s.Thawed(a.Lease, now, 0, nil)
		case Wait:
			now = a.Until
		}
	}
}
