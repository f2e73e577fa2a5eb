package quota

import (
	"testing"
	"time"
)

// TestALeaseThatNoSampleNames checks that a lease that is alone, and that no sample names, is not shown to use nothing while the series says
// that the GPU is busy: its samples are missing. Where the GPU is idle it needs no more.
func TestALeaseThatNoSampleNames(t *testing.T) {
	const period = 125 * time.Millisecond
	for _, busy := range []bool{true, false} {
		s := NewScheduler(Config{})
		member := Member{Lease: "a", Grant: "a", Share: 50, Active: true}
		s.SetMembers(0, []Member{member, {Lease: "b", Grant: "b", Share: 50, Active: true}})
		var read, listed time.Duration
		for at := time.Second; at <= 90*time.Second; at += time.Second {
			if at == 31*time.Second {
				s.SetMembers(at, []Member{member})
			}
			alone := at > 31*time.Second
			if s.SeriesDue(at) {
				u := Utilization{From: read, UpTo: at}
				for end := read.Truncate(period) + period; end <= at && (busy || !alone); end += period {
					u.Periods = append(u.Periods, Period{End: end, Busy: 1})
				}
				s.ObserveUtilization(at, u)
				read = at
			}
			if s.ProcessesDue(at, listed) {
				parts := map[string]float64{"a": 0.5, "b": 0.5}
				if alone {
					parts = nil
				}
				s.ObserveProcesses(at, listed, at, parts)
				listed = at
			}
			for range 1000 {
				a := s.Next(at)
				if a.Kind == Wait {
					break
				}
				if a.Kind == Thaw {
					s.Thawed(a.Lease, at, 0, nil)
				}
				if a.Kind == Freeze {
					s.Froze(a.Lease, at, 0, nil)
				}
			}
			v := s.Verdict(at, "a")
			if at < 60*time.Second {
				continue
			}
			if busy && v.State != Unmeasured {
				t.Fatalf("at %v the GPU is busy and no sample names a process, and the share is shown as %s: %s", at, v.State, v.Reason)
			}
			if !busy && v.State != Less {
				t.Fatalf("at %v the GPU is idle, and the share is shown as %s: %s", at, v.State, v.Reason)
			}
		}
	}
}
