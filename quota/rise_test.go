package quota

import (
	"testing"
	"time"
)

// A lease that was alone, did nothing, and has work again when another one keeps the GPU busy has its share for itself, not all of the GPU
// that was its own before.
func TestWakesWithItsShare(t *testing.T) {
	t.Parallel()
	s := NewScheduler(Config{})
	list := []Member{{Lease: "a", Grant: "a", Share: 20, Active: true}, {Lease: "b", Grant: "b", Share: 80}}
	s.SetMembers(0, list)
	at := time.Duration(0)
	step := func(a, b float64) {
		const period = 200 * time.Millisecond
		at += time.Second
		s.Next(at)
		u := Utilization{From: at - time.Second, UpTo: at}
		for end := u.From + period; end <= at; end += period {
			u.Periods = append(u.Periods, Period{End: end, Busy: a + b})
		}
		s.ObserveUtilization(at, u)
		s.ObserveProcesses(at, at-time.Second, at, map[string]float64{"a": a, "b": b})
	}
	each := func(seconds int, a, b float64) {
		for range seconds {
			step(a, b)
		}
	}
	each(15, 1, 0)
	each(15, 0, 0)
	list[0].Active = false
	s.SetMembers(at, list)
	list[1].Active = true
	s.SetMembers(at, list)
	each(20, 0, 1)
	list[0].Active = true
	s.SetMembers(at, list)
	if m := s.find("a"); m.demand.class != limited || m.demand.credit > 2500*time.Millisecond {
		t.Errorf("it is %v and may use %v, with a share of 20 %% of 10 s", m.demand.class, m.demand.credit)
	}
}
