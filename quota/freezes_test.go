package quota

import (
	"slices"
	"testing"
	"time"
)

// TestFreezesOfTheLastMinute checks how often and for how long a lease was frozen in the last minute, with the freeze that lasts, and
// that older ones are forgotten.
func TestFreezesOfTheLastMinute(t *testing.T) {
	s := NewScheduler(Config{})
	s.SetMembers(0, []Member{{Lease: "a", Share: 1, Active: true}, {Lease: "b", Share: 1, Active: true}})
	freeze := func(from, to time.Duration) {
		s.Froze("a", from, 0, nil)
		if to != 0 {
			s.Thawed("a", to, 0, nil)
		}
	}
	check := func(now time.Duration, want Freezes) {
		t.Helper()
		got := usageOf(t, s, now, "a").LastMinute
		if got.Wait50, got.Wait99 = 0, 0; got != want {
			t.Errorf("at %v: %+v, want %+v", now, got, want)
		}
	}
	check(time.Second, Freezes{})
	freeze(10*time.Second, 12*time.Second)
	freeze(20*time.Second, 20*time.Second+ms(500))
	check(30*time.Second, Freezes{Count: 2, Frozen: ms(2500), Longest: 2 * time.Second})
	check(71*time.Second, Freezes{Count: 2, Frozen: ms(1500), Longest: time.Second})
	freeze(75*time.Second, 0)
	check(76*time.Second, Freezes{Count: 2, Frozen: ms(1500), Longest: time.Second})
	s.Thawed("a", 77*time.Second, 0, nil)
	check(90*time.Second, Freezes{Count: 1, Frozen: 2 * time.Second, Longest: 2 * time.Second})
	check(200*time.Second, Freezes{})
	if n := len(s.find("a").usage.past); n != 2 {
		t.Errorf("%d freezes are kept, want those of the minute before the last one", n)
	}
	if u := usageOf(t, s, 200*time.Second, "b"); u.LastMinute != (Freezes{}) {
		t.Errorf("%+v", u)
	}
}

// TestWaitsForFreezes checks how long requests wait for the freezes of the last minute against requests that arrive each millisecond.
func TestWaitsForFreezes(t *testing.T) {
	type freeze struct{ from, to time.Duration }
	for _, c := range []struct {
		name    string
		joined  time.Duration
		freezes []freeze
	}{
		{"none", 0, nil},
		{"one in a minute", 0, []freeze{{20 * time.Second, 22 * time.Second}}},
		{"shorter than one in a hundred", 0, []freeze{{20 * time.Second, 20*time.Second + ms(590)}}},
		{"most of the time", 0, []freeze{{5 * time.Second, 30 * time.Second}, {31 * time.Second, 55 * time.Second}}},
		{"of different lengths", 0, []freeze{
			{ms(3000), ms(3020)}, {ms(5000), ms(9000)}, {ms(10000), ms(10100)}, {ms(20000), ms(21000)}, {ms(30000), ms(50000)},
		}},
		{"it joined 10 s ago", 50 * time.Second, []freeze{{ms(51000), ms(57000)}, {ms(58000), ms(59000)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewScheduler(Config{})
			s.SetMembers(0, []Member{{Lease: "b", Share: 1, Active: true}})
			s.Next(c.joined)
			s.SetMembers(c.joined, []Member{{Lease: "a", Share: 1, Active: true}, {Lease: "b", Share: 1, Active: true}})
			for _, f := range c.freezes {
				s.Froze("a", f.from, 0, nil)
				s.Thawed("a", f.to, 0, nil)
			}
			var waits []time.Duration
			for at := c.joined; at < time.Minute; at += time.Millisecond {
				var wait time.Duration
				for _, f := range c.freezes {
					if at >= f.from && at < f.to {
						wait = f.to - at
					}
				}
				waits = append(waits, wait)
			}
			slices.Sort(waits)
			got := usageOf(t, s, time.Minute, "a").LastMinute
			for part, x := range map[int]time.Duration{50: got.Wait50, 99: got.Wait99} {
				if want := waits[len(waits)*part/100]; (x - want).Abs() > 3*time.Millisecond {
					t.Errorf("%d of 100 requests wait up to %v, want %v", part, x, want)
				}
			}
		})
	}
}
