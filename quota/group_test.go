package quota

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// TestGroup checks leases that use several GPUs: each is frozen as a whole, leases on different GPUs run at the same time, and
// no two leases run on the same GPU.
func TestGroup(t *testing.T) {
	s := NewScheduler(Config{})
	member := func(id string, gpus ...gpu.UUID) Member {
		return Member{Lease: id, Grant: id, Share: 1, GPUs: gpus, Active: true}
	}
	list := []Member{member("left", "GPU-0"), member("right", "GPU-1"), member("wide", "GPU-0", "GPU-1")}
	s.SetMembers(0, list)
	running := map[string]bool{"left": true, "right": true, "wide": true}
	had := map[string]time.Duration{}
	now := time.Duration(0)
	for end := 60 * time.Second; now < end; {
		a := s.Next(now)
		switch a.Kind {
		case Freeze:
			running[a.Lease] = false
			s.Froze(a.Lease, now, 0, nil)
		case Thaw:
			running[a.Lease] = true
			s.Thawed(a.Lease, now, 0, nil)
		case Renew:
		case Wait:
			if now > 5*time.Second && running["wide"] && (running["left"] || running["right"]) {
				t.Fatalf("at %v two leases run on one GPU: %v, %s", now, running, a.Reason)
			}
			for id, on := range running {
				if on && now > 5*time.Second {
					had[id] += a.Until - now
				}
			}
			now = a.Until
			if now > time.Second { // nothing is idle for the driver
				s.ObserveProcesses(now, now-time.Millisecond, now, map[string]float64{"left": 0.3, "right": 0.3, "wide": 0.4})
			}
		}
	}
	for _, m := range list {
		if part := had[m.Lease].Seconds() / 55; part < 0.44 || part > 0.56 {
			t.Errorf("%s has %.2f of the time of its GPUs, want a half; %v", m.Lease, part, had)
		}
	}
}

// TestGroupLearnsFromEachGPU checks that the utilisation of a GPU belongs to the leases that use it.
func TestGroupLearnsFromEachGPU(t *testing.T) {
	s := NewScheduler(Config{})
	s.SetMembers(0, []Member{
		{Lease: "a", GPUs: []gpu.UUID{"GPU-0"}, Share: 1, Active: true},
		{Lease: "b", GPUs: []gpu.UUID{"GPU-0", "GPU-1"}, Share: 1, Active: true},
	})
	s.ObserveUtilization(ms(900), Utilization{GPU: "GPU-1", UpTo: ms(900)})
	s.ObserveUtilization(ms(900), Utilization{GPU: "GPU-9", UpTo: ms(900)})
	if len(s.tracks) != 2 || s.tracks[0].read != 0 || s.tracks[1].read != ms(900) {
		t.Errorf("tracks %+v", s.tracks)
	}
}
