package quota

import (
	"math"
	"testing"
	"time"
)

// TestLowLatencyKeepsItsShareWhole checks that the share of a lease with low latency is a part of the whole time, whatever the other shares
// and the priorities are.
func TestLowLatencyKeepsItsShareWhole(t *testing.T) {
	for _, c := range []struct {
		name    string
		members []Member
		want    []float64
	}{
		{
			"shares that fit",
			[]Member{{Lease: "a", Share: 20, LowLatency: true}, {Lease: "b", Share: 60}},
			[]float64{0.25, 0.75},
		},
		{
			"shares that are too much",
			[]Member{{Lease: "a", Share: 30, LowLatency: true}, {Lease: "b", Share: 100}, {Lease: "c", Share: 40}},
			[]float64{0.3, 0.5, 0.2},
		},
		{
			"next to a higher class",
			[]Member{{Lease: "a", Share: 30, LowLatency: true}, {Lease: "b", Share: 60, Priority: PriorityHigh}, {Lease: "c", Share: 10}},
			[]float64{0.3, 0.665 / 0.6725 * 0.7, 0.0075 / 0.6725 * 0.7},
		},
		{
			"two leases of one grant",
			[]Member{{Lease: "a", Grant: "g", Share: 40, LowLatency: true}, {Lease: "b", Grant: "g", Share: 40, LowLatency: true}, {Lease: "c", Share: 100}},
			[]float64{0.2, 0.2, 0.6},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewScheduler(Config{})
			for i := range c.members {
				m := &c.members[i]
				if m.Active = true; m.Grant == "" {
					m.Grant = m.Lease
				}
			}
			s.SetMembers(0, c.members)
			var sum float64
			for i, u := range s.Usage(time.Second) {
				if sum += u.Entitled; math.Abs(u.Entitled-c.want[i]) > 0.005 {
					t.Errorf("%s is entitled to %.4f, want %.4f", u.Lease, u.Entitled, c.want[i])
				}
			}
			if math.Abs(sum-1) > 0.001 {
				t.Errorf("together %.4f", sum)
			}
		})
	}
}

// TestLowLatencyIsNeverFrozenAtFirst checks that the others are frozen for each other, and it for none, before the driver has answered.
func TestLowLatencyIsNeverFrozenAtFirst(t *testing.T) {
	s := NewScheduler(Config{})
	s.SetMembers(0, []Member{
		{Lease: "a", Share: 40, Active: true},
		{Lease: "b", Share: 40, Active: true},
		{Lease: "c", Share: 20, Active: true, LowLatency: true},
	})
	frozen := map[string]bool{}
	now := time.Duration(0)
	for now < 5*time.Second {
		switch a := s.Next(now); a.Kind {
		case Freeze:
			frozen[a.Lease] = true
			s.Froze(a.Lease, now, 0, nil)
		case Thaw:
			s.Thawed(a.Lease, now, 0, nil)
		case Renew:
		case Wait:
			now = a.Until
		}
	}
	if !frozen["a"] || !frozen["b"] || frozen["c"] {
		t.Errorf("frozen: %v", frozen)
	}
}
