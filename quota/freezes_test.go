package quota

import (
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
		if got := usageOf(t, s, now, "a").LastMinute; got != want {
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
