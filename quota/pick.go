package quota

import (
	"slices"
	"time"
)

// round is the time in which every lease gets its share once. It is longer where the driver samples seldom: each switch costs a
// backlog that is only estimated.
func (s *Scheduler) round() time.Duration {
	r := s.shortRound()
	if s.slow() {
		return max(r, min(2*r, s.cfg.MaxFrozen*3/5))
	}
	return r
}

func (s *Scheduler) shortRound() time.Duration {
	switch {
	case s.cfg.Round != 0:
		return s.cfg.Round
	case len(s.in) > 8:
		return max(2*time.Second, min(time.Duration(len(s.in))*250*time.Millisecond, s.cfg.MaxFrozen*3/5))
	case len(s.in) > 4:
		return 2 * time.Second
	}
	return time.Second
}

// quantum is the shortest slice.
func (s *Scheduler) quantum() time.Duration {
	return min(max(s.cfg.MinQuantum, 40*s.switchTime), s.longestQuantum())
}

// longestQuantum is what the shortest slice is at most, however long a switch takes.
func (s *Scheduler) longestQuantum() time.Duration { return s.cfg.MaxFrozen / 8 }

// waitLimit moves a time forward so that no frozen lease outside the set is frozen for too long, with time for the backlog
// and the switch.
func (s *Scheduler) waitLimit(t time.Duration) time.Duration {
	margin := 2*s.switchTime + 5*time.Millisecond
	for _, m := range s.set {
		if !m.frozen || s.phase == sliceOpens || s.phase == sliceRuns {
			margin = max(margin, m.wait+2*s.switchTime+5*time.Millisecond)
		}
	}
	for _, m := range s.in {
		if m.frozen && !m.running {
			t = min(t, m.frozenAt+s.cfg.MaxFrozen-margin)
		}
	}
	return t
}

// thawDeadline moves a time forward to the first moment at which a lease has been frozen for MaxFrozen.
func (s *Scheduler) thawDeadline(t time.Duration) time.Duration {
	for _, m := range s.in {
		if m.frozen {
			t = min(t, m.frozenAt+s.cfg.MaxFrozen)
		}
	}
	return t
}

// pickNext goes through the leases in order, credits each with its part of a round, and takes the first that has enough for a
// slice. When all have reached their caps it returns nil and the time when the first has budget again.
func (s *Scheduler) pickNext(now time.Duration) (*member, time.Duration, time.Duration) {
	in, r, q := s.in, s.round(), s.quantum()
	var total float64
	at := now + time.Hour
	for _, m := range in {
		if wait := s.capWait(m, q); wait == 0 {
			total += m.weight
		} else {
			at = min(at, now+wait)
		}
	}
	first := max(slices.IndexFunc(in, func(m *member) bool { return m.Lease > s.lastPicked }), 0)
	credit := func(m *member) {
		part := time.Duration(min(m.weight/total, 1) * float64(r)) // a lease whose cap is used up is not in total
		// The limit keeps a lease from saving up for a long slice. Without its second term a lease with a long backlog and a
		// small share would never run.
		m.deficit = min(m.deficit+part, max(2*part, m.backlog.mean+part+q))
		// A debt that the share cannot pay back, because the lease runs at least once in MaxFrozen, does not grow.
		m.deficit = max(m.deficit, -2*(r+max(m.backlog.longest(), m.backlog.mean)))
	}
	if m := s.urgent(now, q); m != nil {
		if total > 0 {
			credit(m) // its credit comes early
		}
		return m, max(q, min(m.deficit-m.backlog.mean, r)), 0
	}
	if total == 0 {
		return nil, 0, at
	}
	// A lease with debt needs several credits to pay it back. The bound is only against a defect.
	for i := first; i < first+100000; i++ {
		m := in[i%len(in)]
		if s.capWait(m, q) != 0 {
			continue
		}
		credit(m)
		slice := m.deficit - m.backlog.mean
		if m.cap != 0 {
			slice = min(slice, m.budget-m.backlog.mean)
		}
		if slice >= q {
			if s.cfg.Rand != nil {
				slice += time.Duration(float64(slice) * s.cfg.Dither * (2*s.cfg.Rand() - 1))
			}
			return m, max(slice, q), 0
		}
	}
	return in[first], q, 0
}

// urgent is the frozen lease that reaches MaxFrozen before another slice could end, or one of a higher class that does not
// wait for its credit.
func (s *Scheduler) urgent(now, q time.Duration) *member {
	var out *member
	var longest time.Duration
	for _, m := range s.in {
		if m.frozen && (out == nil || m.frozenAt < out.frozenAt) {
			out = m
		}
	}
	for _, m := range s.in {
		if m != out {
			longest = max(longest, m.backlog.wait)
		}
		if m != out && m.running {
			longest = max(longest, m.wait)
		}
	}
	if out == nil || now+q+longest+4*s.switchTime+10*time.Millisecond < out.frozenAt+s.cfg.MaxFrozen {
		return s.preempting
	}
	return out
}

// mostCredit is the credit that a lease can have. A slice may use two rounds, or a round after the backlog; a slice that is
// extended has the backlog once more, until it is charged.
func (s *Scheduler) mostCredit(m *member) time.Duration {
	return 2*(s.round()+m.backlog.mean) + s.longestQuantum()
}

// limitCredits drops the credit above the limit. Results of several freezes that are known at once can give more, and what
// was credited for a long backlog is too much when that turns out to be short.
func (s *Scheduler) limitCredits() {
	for _, m := range s.in {
		m.deficit = min(m.deficit, s.mostCredit(m))
	}
}

// burst is how much budget of its cap a lease may save up: two rounds, because it may wait for another lease's slice.
func (s *Scheduler) burst(m *member) time.Duration {
	return max(time.Duration(2*m.cap*float64(s.round())), m.backlog.mean+s.quantum())
}

// capWait is the time until a lease's cap allows a slice. That is once a round, because each of many short slices would have
// the error of the backlog estimate.
func (s *Scheduler) capWait(m *member, q time.Duration) time.Duration {
	lack := max(q+m.backlog.mean, time.Duration(0.9*m.cap*float64(s.round()))) - m.budget
	if m.cap == 0 || lack <= 0 {
		return 0
	}
	return max(time.Millisecond, time.Duration(float64(lack)/m.cap))
}
