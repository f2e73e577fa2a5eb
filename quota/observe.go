package quota

import (
	"slices"
	"time"
)

// freeze is the end of a slice, until its samples are known.
type freeze struct {
	lease    *member
	at       time.Duration // the lease was frozen
	ran      time.Duration // its slice
	next     time.Duration // the next lease was thawed; 0: not yet
	wait     time.Duration // as planned
	until    time.Duration // its end as planned, without the lag
	measures bool
	epoch    int
	charged  time.Duration // for the backlog, so far
	after    *member       // the next lease: what the backlog uses of its slice is credited to it
	paid     time.Duration // accounted to leases next to the slices: at first up to the freeze, then during the wait
	cleared  bool          // those next to the slices had the GPU for themselves after it
}

// measures reports whether the backlog of a lease is measured with waits. Otherwise it is an integral of what the driver
// attributes to the processes: without the series, and with kernels so long that a wait that measures them would leave the GPU
// idle for a second.
func (s *Scheduler) measures(m *member) bool { return s.hasSeries() && s.last >= m.backlog.longUntil }

// idleBudget is how long the GPU may be idle after a slice: the slices of many leases are short.
func (s *Scheduler) idleBudget() time.Duration {
	return min(idleBudget, s.round()/time.Duration(80*max(1, len(s.in))))
}

// longestWait is the longest wait after a slice of a lease that lets no other lease be frozen for too long: each has a slice
// and a wait, too. Where the backlogs are unknown, all have the same.
func (s *Scheduler) longestWait(m *member) time.Duration {
	left, unknown := s.cfg.MaxFrozen-50*time.Millisecond, 1
	for _, x := range s.in {
		switch {
		case x == m:
		case len(x.backlog.sorted) == 0 && s.measures(x):
			unknown++
			left -= s.quantum() + 2*s.switchTime
		default:
			left -= s.quantum() + 2*s.switchTime + max(x.backlog.wait, x.backlog.longest())
		}
	}
	return min(max(left/time.Duration(unknown), m.backlog.wait, s.quantum()), longestWait)
}

// plan is how long to wait after the slice of a lease that begins, and whether that measures its backlog.
func (s *Scheduler) plan(m *member) (time.Duration, bool) {
	limit := s.longestWait(m)
	if !s.measures(m) {
		return min(m.backlog.wait, limit), false
	}
	if len(s.in) > 2 && len(m.backlog.sorted) == 0 && s.lags(m) {
		return min(outsideBacklog/3, limit), false // Of more than two leases each other long wait would cost as much.
	}
	return m.backlog.plan(limit)
}

// lags reports whether the result of a long wait after a slice of a lease is late.
func (s *Scheduler) lags(m *member) bool {
	late := slices.ContainsFunc(m.tracks, func(t *track) bool { return t.upTo != 0 && s.last > t.upTo+resultWithin })
	return slices.ContainsFunc(s.freezes, func(f *freeze) bool {
		return f.lease == m && f.measures && f.epoch == m.backlog.epoch && f.next != 0 && (late || s.last > f.next+resultWithin)
	})
}

// startFreezes begins the wait for the queued work of the leases whose slice has ended, charges it, and returns when it ends.
func (s *Scheduler) startFreezes() time.Duration {
	var until time.Duration
	for _, m := range s.set {
		m.deficit -= m.own.charge(m.frozenAt-s.start) + m.backlog.mean
		end := m.frozenAt + m.wait
		if !m.measures {
			end -= min(s.lag, m.wait)
		}
		until = max(until, end)
		if !s.measures(m) {
			m.usage.pending = m.backlog.mean
			continue
		}
		m.usage.pending = 0 // It is accounted when the samples are known.
		f := &freeze{
			lease:    m,
			at:       m.frozenAt,
			ran:      m.frozenAt - s.start,
			wait:     m.wait,
			until:    end,
			measures: m.measures,
			epoch:    m.backlog.epoch,
			charged:  m.backlog.mean,
			paid:     s.paid,
		}
		if m.frozenAt < s.disturbed || f.ran < 2*s.leftover {
			f.epoch = -1 // the queued work of other leases ran in the slice, too
		}
		if len(s.freezes) == 128 { // ObserveUtilization is not called
			s.freezes = slices.Delete(s.freezes, 0, 64)
		}
		s.freezes = append(s.freezes, f)
	}
	return until
}

// longestLag limits the lag that is expected: a machine that was busy for a moment need not be at the next thaw.
const longestLag = 5 * time.Millisecond

// endFreezes ends the waits of the GPUs of a lease that was thawed.
func (s *Scheduler) endFreezes(m *member) {
	for _, f := range s.freezes {
		if f.next == 0 && f.lease.overlaps(&m.Member) {
			f.next, f.paid = s.last, s.paid-f.paid
			if f.lease != m {
				f.after = m
			}
			s.lag += (min(max(s.last-f.until, 0), longestLag) - s.lag) / 8
			switch b, wait := &f.lease.backlog, f.next-f.at; {
			case len(b.sorted) == 0 && wait < f.wait:
				s.leftover = max(s.leftover, s.cfg.MaxFrozen)
			default:
				s.leftover = max(s.leftover, b.longest()-wait)
			}
		}
	}
}

// closeFreezes ends all waits: from now on the time is accounted in another way.
func (s *Scheduler) closeFreezes() {
	for _, f := range s.freezes {
		if f.next == 0 {
			f.next, f.paid, f.epoch = s.last, s.paid-f.paid, -1
		}
	}
}

// ObserveUtilization adds the utilisation samples since the last call; once a second and GPU is enough. Without the series
// of samples from the driver, do not call it, and call ObserveProcesses.
func (s *Scheduler) ObserveUtilization(now time.Duration, u Utilization) {
	s.account(now)
	s.refresh()
	i := slices.IndexFunc(s.tracks, func(t *track) bool { return t.id == u.GPU })
	if i < 0 && len(s.tracks) == 1 {
		i = 0
	}
	if i < 0 {
		return
	}
	t, slow := s.tracks[i], s.slow()
	ends := t.ends
	s.sensors.noteBusy(u.Periods, s.last)
	from, upTo := s.sensors.idle(u.UpTo)
	first := t.add(u, from, upTo)
	if t.ends > ends || t.upTo >= u.UpTo-2*t.length {
		s.sensors.seriesAt = s.last
	}
	for _, p := range t.periods[first:] {
		s.gpuBusy.add(p, len(s.tracks))
		s.observe(t, p)
	}
	if s.slow() != slow {
		s.forgetSeries()
	}
	before := t.upTo
	s.freezes = slices.DeleteFunc(s.freezes, func(f *freeze) bool {
		before = min(before, f.at)
		if f.next == 0 || s.awaitsRows(f) ||
			slices.ContainsFunc(f.lease.tracks, func(t *track) bool { return t.upTo < f.next+3*time.Millisecond }) {
			return false
		}
		s.evaluate(f)
		return true
	})
	s.limitCredits()
	for _, t := range s.tracks {
		t.prune(before - periodsKept)
	}
	s.classify()
	if s.cfg.Fallback && s.enforces() && s.hasSeries() {
		if used, known := s.used(); s.fallback.decide(s.last, used, known) {
			for _, m := range s.in {
				m.own.n = 0
			}
		}
	}
	s.refresh()
}

// observe uses one period: the idle time that leases leave in their slices, and the idle time while a lease waits.
func (s *Scheduler) observe(t *track, p period) {
	busy := p.to - p.from - p.idle
	var others time.Duration // in which another than the lease ran
	for i := len(t.segments) - 1; i >= 0; i-- {
		g := &t.segments[i]
		end := t.end(i, s.last)
		if end <= p.from {
			break
		}
		over := overlap(g.from, end, p.from, p.to)
		if over == 0 {
			continue
		}
		if g.waiting {
			idle := time.Duration(float64(p.idle) * float64(over) / float64(p.to-p.from))
			t.idle += idle
			if g.state != clears { // That is no slice.
				s.fallback.observed += over
				s.fallback.idle += idle
			}
		}
		if g.state == clears && over == p.to-p.from {
			s.clearing.own.add(float64(p.idle) / float64(over))
		}
		if g.state != runs {
			continue
		}
		others = p.to - p.from - over
		if others == 0 {
			g.lease.own.add(float64(p.idle) / float64(p.to-p.from))
		}
		// The lease did nothing if its time was idle and the others explain what was busy.
		if p.idle >= over*9/10 && busy <= others+(p.to-p.from)/50 {
			g.lease.own.unused += over
		} else if over > (p.to-p.from)/10 {
			g.lease.own.unused = 0
		}
		if g.lease.own.unused >= s.idleAfter(g.lease) && s.participates(g.lease) {
			s.rest(g.lease)
		}
	}
}

// mostNextTo is the part of a wait from which on what leases next to the slices do in it hides what the queued work does.
const mostNextTo = 0.5

// awaitsRows reports whether it is not known yet what the leases next to the slices did after a freeze.
func (s *Scheduler) awaitsRows(f *freeze) bool {
	if len(s.free) == 0 || !s.hasAnswers() || s.last >= f.next+resultWithin {
		return false
	}
	return !slices.ContainsFunc(s.free, func(m *member) bool {
		return len(m.demand.rows) > 0 && m.demand.rows[len(m.demand.rows)-1].to >= f.next
	})
}

// freeUseIn is the part of a time that leases next to the slices used.
func (s *Scheduler) freeUseIn(from, to time.Duration) float64 {
	var used, known float64
	for _, m := range s.free {
		for i := range m.demand.rows {
			a := &m.demand.rows[i]
			if over := overlap(from, to, a.from, a.to).Seconds(); over > 0 {
				used += a.used * over / (a.to - a.from).Seconds()
				known = max(known, over)
			}
		}
	}
	if known == 0 || s.last > to+resultWithin { // a series that lags
		return min(s.freeUse(), mostNextTo)
	}
	return min(used/max((to-from).Seconds(), 1e-6), 1)
}

// evaluate computes how long the queued work ran after a freeze, learns from it, and corrects what was charged for it.
func (s *Scheduler) evaluate(f *freeze) {
	m, wait := f.lease, f.next-f.at
	var d time.Duration
	censored, nextTo := false, s.freeUseIn(f.at, f.next)
	for _, t := range m.tracks {
		idle, length, ok := t.unexplained(f.at, f.next, s.last)
		if !ok || nextTo > mostNextTo {
			m.usage.addAt(f.at, f.next, min(f.charged, wait-f.paid))
			return // it remains charged with the mean
		}
		noise := time.Millisecond + time.Duration(0.004*float64(length)) + time.Duration(m.own.usual()*float64(20*time.Millisecond))
		idle = min(wait, time.Duration(float64(idle)/(1-nextTo))) // in the rest of it others ran next to
		if ran := wait - idle; ran >= d {
			d, censored = ran, idle < noise
		}
	}
	if f.measures {
		s.fallback.measuring += wait - d
	}
	m.backlog.learn(f, d, censored, s.idleBudget())
	// What is left of an earlier backlog after half of this slice runs with this one's.
	rest := max(0, m.incoming-f.ran/2)
	m.incoming = 0
	if censored {
		d = min(max(m.backlog.above(max(0, wait-rest))+rest, wait), wait+longestWait)
		if f.after != nil {
			f.after.deficit += d - wait
			f.after.incoming = d - wait
			f.after.usage.owe(m, d-wait)
		}
	}
	m.deficit -= d - f.charged
	if f.cleared {
		s.clearing.early -= d - f.charged
	}
	m.budget -= min(d, wait)
	m.usage.addAt(f.at, f.next, min(d, wait-f.paid))
}
