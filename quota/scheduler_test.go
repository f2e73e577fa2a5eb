package quota

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

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

// TestWakeUpsOfASlice counts how often the scheduler must be called again later: at the end of a slice and at the end of its
// backlog. Thaw deadlines are renewed at these times.
func TestWakeUpsOfASlice(t *testing.T) {
	s := NewScheduler(Config{})
	var list []Member
	for i := range 8 {
		id := fmt.Sprint("l-", i)
		list = append(list, Member{Lease: id, Grant: id, Share: 1, Active: true})
	}
	s.SetMembers(0, list)
	busy := map[string]float64{}
	for _, m := range list {
		busy[m.Lease] = 0.125
	}
	deadlines := map[string]time.Duration{}
	waits, slices, renewals, step := 0, 0, 0, 20*time.Microsecond // a call takes some time
	var now time.Duration
	for end := 60 * time.Second; now < end; now += step {
		for id, d := range deadlines {
			if d <= now {
				t.Fatalf("at %v the thaw deadline of %s has passed", now, id)
			}
		}
		a := s.Next(now)
		switch a.Kind {
		case Freeze:
			deadlines[a.Lease] = a.Until
			s.Froze(a.Lease, now, step, nil)
		case Thaw:
			slices++
			delete(deadlines, a.Lease)
			s.Thawed(a.Lease, now, step, nil)
		case Renew:
			renewals++
			deadlines[a.Lease] = a.Until
		case Wait:
			waits++
			now = a.Until
		}
		s.ObserveProcesses(now, now-time.Millisecond, now, busy)
	}
	if slices < 200 || waits > slices*21/10 {
		t.Errorf("%d waits for %d slices", waits, slices)
	}
	if most := 8 * 60; renewals > most*3/2 {
		t.Errorf("%d renewals in a minute, with eight leases that are renewed once a second", renewals)
	}
	t.Logf("%d waits, %d slices, %d renewals", waits, slices, renewals)
}

// TestFailuresFailOpen checks that a lease that cannot be frozen keeps running and that the others still share.
func TestFailuresFailOpen(t *testing.T) {
	s := NewScheduler(Config{})
	s.SetMembers(
		0,
		[]Member{{Lease: "a", Share: 1, Active: true}, {Lease: "stone", Share: 1, Active: true}, {Lease: "z", Share: 1, Active: true}},
	)
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

// TestSchedulerInvariants runs the scheduler with random leases, delays, failures and stalls, and checks its invariants.
func TestSchedulerInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := 3 * time.Second
		s := NewScheduler(Config{MaxFrozen: most, Rand: func() float64 { return rapid.Float64Range(0, 0.999).Draw(t, "dither") }})
		type state struct {
			m        Member
			frozen   bool
			since    time.Duration
			deadline time.Duration
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
		waits, stalls, read := 0, 0, time.Duration(0)
		for range rapid.IntRange(20, 300).Draw(t, "events") {
			switch rapid.IntRange(0, 15).Draw(t, "event") {
			case 0:
				id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "lease")
				m := Member{
					Lease:       id,
					Grant:       rapid.SampledFrom([]string{"x", "y"}).Draw(t, "grant"),
					Payer:       rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "payer"),
					Share:       float64(rapid.IntRange(1, 100).Draw(t, "share")),
					Active:      rapid.Bool().Draw(t, "active"),
					NeverFreeze: rapid.IntRange(0, 5).Draw(t, "never frozen") == 0,
					Held:        rapid.IntRange(0, 5).Draw(t, "held") == 0,
					Priority:    Priority(rapid.IntRange(-1, 1).Draw(t, "priority")),
				}
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
				parts := map[string]float64{}
				for _, id := range slices.Sorted(maps.Keys(leases)) {
					if rapid.Bool().Draw(t, "sampled") {
						parts[id] = 0.2
					}
				}
				s.ObserveProcesses(now, read, now, parts)
				if rapid.Bool().Draw(t, "series") {
					u := Utilization{From: read, UpTo: now}
					for at := read; at < now && len(u.Periods) < 100; at += ms(139) {
						u.Periods = append(u.Periods, Period{End: at, Busy: rapid.Float64Range(0, 1).Draw(t, "busy")})
					}
					s.ObserveUtilization(now, u)
				}
				read = now
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
						if x.m.Active && !x.m.NeverFreeze && !x.m.Held {
							active++
						}
						if x.frozen && (!x.m.Active || x.m.NeverFreeze || x.m.Held) {
							t.Fatalf("%s is frozen and does not participate", x.m.Lease)
						}
						if x.frozen && a.Until > x.deadline-400*time.Millisecond && x.deadline > now+500*time.Millisecond {
							t.Fatalf("at %v the wait ends at %v, the thaw deadline of %s is %v", now, a.Until, x.m.Lease, x.deadline)
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
					if st == nil || st.frozen || !st.m.Active || st.m.NeverFreeze || st.m.Held {
						t.Fatalf("freezes %q: %+v", a.Lease, st)
					}
					if a.Until <= now || a.Until > now+1500*time.Millisecond {
						t.Fatalf("freezes until %v at %v", a.Until, now)
					}
					now += duration
					st.frozen, st.since, st.deadline = true, now, a.Until
					var err error
					if rapid.IntRange(0, 19).Draw(t, "fails") == 0 {
						err = errors.New("did not freeze")
					}
					s.Froze(a.Lease, now, duration, err)
				case Renew:
					if st == nil || !st.frozen || a.Until <= now || a.Until > now+1500*time.Millisecond {
						t.Fatalf("renews %q until %v at %v: %+v", a.Lease, a.Until, now, st)
					}
					st.deadline = a.Until
				case Thaw:
					if st == nil || !st.frozen {
						t.Fatalf("thaws %q: %+v", a.Lease, st)
					}
					now += duration
					st.frozen = false
					s.Thawed(a.Lease, now, duration, nil)
				}
			}
			for _, m := range s.in {
				if most := 2*(s.round()+m.backlog.mean) + most/8; m.deficit > most {
					t.Fatalf("%s has a credit of %v, at most %v is kept", m.Lease, m.deficit, most)
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

// TestLateResultsGiveNoCredit checks that the results of several freezes that are known at once do not add up to more credit
// than a lease may save up. Here a long backlog was learned without the series, was charged at each freeze, and turns out to
// be short when the series appears.
func TestLateResultsGiveNoCredit(t *testing.T) {
	three := 0.75
	for gap := ms(500); gap < ms(6000); gap += ms(100) {
		s := NewScheduler(Config{MaxFrozen: 3 * time.Second})
		b := Member{Lease: "b", Grant: "x", Share: 1, Active: true, Cap: &three}
		s.SetMembers(0, []Member{b})
		var now, read time.Duration
		run := func(until time.Duration) {
			for until > now {
				switch a := s.Next(now); a.Kind {
				case Freeze:
					s.Froze(a.Lease, now, 0, nil)
				case Thaw:
					s.Thawed(a.Lease, now, 0, nil)
				case Renew:
				case Wait:
					now = min(a.Until, until)
				}
			}
		}
		check := func() {
			for _, m := range s.in {
				if most := 2*(s.round()+m.backlog.mean) + 3*time.Second/8; m.deficit > most {
					t.Errorf("after %v: at %v %s has a credit of %v, at most %v is kept", gap, now, m.Lease, m.deficit, most)
				}
			}
		}
		for range 11 {
			run(now + 4*time.Second)
			s.ObserveProcesses(now, read, now, map[string]float64{"b": 1})
			read = now
			check()
		}
		s.ObserveUtilization(now, Utilization{From: read, UpTo: now})
		run(now + gap/2)
		s.SetMembers(now, []Member{{Lease: "a", Grant: "x", Share: 1, Active: true, Priority: PriorityLow}, b})
		run(now + gap)
		u := Utilization{From: read, UpTo: now}
		for at, i := read+ms(139), 0; at <= now; at, i = at+ms(139), i+1 {
			u.Periods = append(u.Periods, Period{End: at, Busy: []float64{1, 0.25, 0.03}[i%3]})
		}
		s.ObserveUtilization(now, u)
		check()
	}
}

// BenchmarkNext is the cost of one action, with the utilisation read once a second.
func BenchmarkNext(b *testing.B) {
	for _, n := range []int{8, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := NewScheduler(Config{Rand: func() float64 { return 0.5 }})
			var list []Member
			for i := range n {
				list = append(list, Member{Lease: fmt.Sprint(i), Grant: fmt.Sprint(i), Share: float64(i + 1), Active: true})
			}
			s.SetMembers(0, list)
			var now, read time.Duration
			periods := make([]Period, 0, 8)
			b.ReportAllocs()
			for b.Loop() {
				switch a := s.Next(now); a.Kind {
				case Freeze:
					s.Froze(a.Lease, now, 0, nil)
				case Thaw:
					s.Thawed(a.Lease, now, 0, nil)
				case Renew:
				case Wait:
					now = a.Until
				}
				if now < read+time.Second {
					continue
				}
				periods = periods[:0]
				for at := read + ms(139); at <= now && len(periods) < 8; at += ms(139) {
					periods = append(periods, Period{End: at, Busy: 0.98})
				}
				s.ObserveUtilization(now, Utilization{From: read, UpTo: now, Periods: periods})
				read = now
			}
		})
	}
}
