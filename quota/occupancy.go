package quota

import "time"

// Usage is the part of a GPU's time that one lease got.
type Usage struct {
	Lease string
	// Occupancy is the time that is accounted to this lease: its slices with the backlog after them, all the time while it
	// runs alone, and equal parts while several run concurrently. It is not how busy the lease kept the GPU.
	Occupancy time.Duration
	// Recent is the part of the last Window that is accounted to this lease.
	Recent float64
	Window time.Duration // 10 s, or less after the start
	// Entitled is its part among the participants, 0…1; 0 when it does not participate.
	Entitled float64
	Frozen   time.Duration // in total
	Slices   uint64
	Backlog  time.Duration // estimated: how long its queued work continues to run after a freeze
	// Strained: its backlog is so long that its share cannot be enforced; a smaller launch queue would help.
	Strained    bool
	Idle        bool // it has the GPU open and does nothing: it is not frozen, and other leases do not wait for it
	Unfreezable bool // freezing it failed: it is not frozen for now
}

// recentWindow is the window of Usage.Recent.
const recentWindow = 10 * time.Second

// keepIntervals is how long intervals are kept, which idle leases are found with.
const keepIntervals = 30 * time.Second

// interval is a part of the GPU's time that is accounted to one lease.
type interval struct {
	from, to time.Duration
	part     float64
}

// account accounts the time since the last call to the leases that had it.
func (s *Scheduler) account(now time.Duration) {
	if now <= s.last {
		return
	}
	from := s.last
	s.last = now
	in := s.participants()
	switch s.phase {
	case concurrent:
		for _, m := range in {
			m.addTime(from, now, 1/float64(len(in)))
		}
	case sliceRuns, backlogRuns:
		if s.started {
			s.current.addTime(from, now, 1)
			s.fallback.addSliceTime(now - from)
		}
	}
	// After addTime, because only what is left of the budget is subject to the limit.
	for _, m := range in {
		if m.cap != 0 {
			m.budget = min(m.budget+time.Duration(m.cap*float64(now-from)), s.burst(m, len(in)))
		}
	}
}

// burst is how much budget of its cap a lease may save up: two rounds, because it may wait for another lease's slice.
func (s *Scheduler) burst(m *member, n int) time.Duration {
	return max(time.Duration(2*m.cap*float64(s.round(n))), m.backlog.estimate+s.quantum())
}

// addTime accounts time to a lease.
func (m *member) addTime(from, to time.Duration, part float64) {
	d := time.Duration(part * float64(to-from))
	m.usage.Occupancy += d
	if m.cap != 0 {
		m.budget -= d
	}
	if n := len(m.intervals); n != 0 && m.intervals[n-1].to == from && m.intervals[n-1].part == part && from-m.intervals[n-1].from < time.Second {
		m.intervals[n-1].to = to
	} else {
		m.intervals = append(m.intervals, interval{from, to, part})
	}
	for len(m.intervals) != 0 && m.intervals[0].to < to-keepIntervals {
		m.intervals = m.intervals[1:]
	}
}

// timeBetween is the time that is accounted to a lease between two moments.
func (m *member) timeBetween(from, to time.Duration) time.Duration {
	var sum time.Duration
	for _, sp := range m.intervals {
		if a, b := max(sp.from, from), min(sp.to, to); a < b {
			sum += time.Duration(sp.part * float64(b-a))
		}
	}
	return sum
}

// Usage accounts up to now and returns the usage of every lease.
func (s *Scheduler) Usage(now time.Duration) []Usage {
	s.account(now)
	now = s.last
	in := s.participants()
	var total float64
	for _, m := range in {
		total += m.weight
	}
	window := min(recentWindow, now)
	out := make([]Usage, 0, len(s.members))
	for _, m := range s.members {
		u := m.usage
		u.Lease, u.Window, u.Backlog, u.Idle, u.Unfreezable = m.Lease, window, m.backlog.estimate, m.idle, now < m.unfreezableUntil
		if m.frozen {
			u.Frozen += now - m.frozenAt
		}
		if window > 0 {
			u.Recent = float64(m.timeBetween(now-window, now)) / float64(window)
		}
		if s.participates(m) && total > 0 {
			u.Entitled = m.weight / total
			u.Strained = len(in) > 1 && float64(m.backlog.estimate+s.quantum()) > u.Entitled*float64(s.cfg.MaxFrozen)
		}
		out = append(out, u)
	}
	return out
}

// Status is how the GPU is time-sliced now.
type Status struct {
	Enforced bool
	Current  string // the lease whose slice runs
	Reason   string // why the shares are not enforced
	// IdleWhileWaiting is the time for which a GPU was idle while a lease that uses it was frozen, in total. It counts for no
	// lease. It is 0 without ObserveUtilization.
	IdleWhileWaiting time.Duration
}

// Status returns the status as of the last Next.
func (s *Scheduler) Status() Status {
	out := Status{Enforced: s.phase != concurrent, Reason: s.reason}
	if s.current != nil {
		out.Current = s.current.Lease
	}
	return out
}
