package quota

import "time"

// ObserveProcesses adds what the driver attributes to the processes of each lease: the part of the time between from and to
// in which each was busy, 0…1, together at most 1. It is needed with and without the series of the whole GPU: it shows that
// an idle lease has work again. A lease that is missing was not busy. It returns the time for which the answer is taken, which begins
// earlier if answers before it had no samples, and false if that is so of this one: then nothing is known of the time yet.
func (s *Scheduler) ObserveProcesses(now, from, to time.Duration, busy map[string]float64) (since time.Duration, observed bool) {
	s.account(now)
	var sum float64
	for _, part := range busy {
		sum += part
	}
	gap := s.sensors.answered != 0 && from > s.sensors.answered+sampleSlack
	if s.sensors.answered = to; gap {
		s.sensors.heldFrom = 0
		s.rebase() // The driver did not answer: what ran until now is not known.
		return from, false
	}
	from, missing := s.missing(from, to, sum)
	if missing {
		return from, false
	}
	s.observeWindows(from, to, busy)
	series := s.hasSeries()
	if !series && s.enforces() {
		s.fallback.observed += to - from
		s.fallback.idle += time.Duration(max(0, 1-sum) * float64(to-from))
		if s.cfg.Fallback {
			s.fallback.decide(s.last, 1, false)
		}
	}
	for _, m := range s.members {
		part := min(busy[m.Lease], 1)
		s.learnDemand(m, from, to, part, max(0, 1-sum))
		switch {
		case m.own.idle:
			m.deficit -= time.Duration(part * float64(to-from)) // it runs next to the others' slices
			if part > 0 && from >= m.own.since && s.last >= m.own.since+m.own.rest {
				s.wakeUp(m)
			}
		case !s.participates(m) || s.measures(m) || !s.enforces():
		default:
			ran := m.usage.occupancy - m.backlog.charged
			s.integrate(m, time.Duration(part*float64(to-from))-ran)
			if part > 0 {
				m.own.unused = 0
			} else if m.own.unused += ran; m.own.unused >= max(idleAfter, idleSamples*s.samplePeriod()) {
				s.rest(m)
			}
		}
		m.backlog.charged = m.usage.occupancy
	}
	s.limitCredits()
	s.classify()
	s.planClearing()
	return from, true
}

// sampleSlack is how much later than the end of the last answer the next one may begin.
const sampleSlack = 100 * time.Millisecond

// rebase begins a time of which something is known: what leases were charged, and how long they were frozen, is compared with answers
// from here on.
func (s *Scheduler) rebase() {
	for _, m := range s.members {
		m.windows.frozen = s.frozenTime(m)
		m.demand.seen, m.demand.emptied, m.demand.occupied = m.windows.frozen, s.emptied, m.usage.occupancy
		m.backlog.charged = m.usage.occupancy
	}
}

// frozenTime is how long a lease was frozen until now.
func (s *Scheduler) frozenTime(m *member) time.Duration {
	if m.frozen {
		return m.usage.frozen + s.last - m.frozenAt
	}
	return m.usage.frozen
}

// corrections is over how many answers a difference is corrected without the series; fewer at the start. The answers of one
// second are wrong by up to 0.2 s; the error of the sum does not grow.
const (
	firstCorrections = 4
	corrections      = 40
	// inexactMean is the mean from which on a quarter of each difference is charged at once: the longer the work, the more it
	// differs from its mean.
	inexactMean = 100 * time.Millisecond
)

// idleSamples is how many samples of a lease's own time name another process until it counts as idle: each names one at random.
const idleSamples = 7

// integrate corrects the backlog by the difference between what the driver attributed to a lease and what it was charged.
func (s *Scheduler) integrate(m *member, off time.Duration) {
	b := &m.backlog
	if s.last < b.longUntil || b.mean >= inexactMean {
		m.deficit -= off / 4
	}
	b.mean = min(max(b.mean+off/time.Duration(min(firstCorrections+b.answers, corrections)), 0), longestWait)
	b.answers++
	b.wait = b.mean
	if s.slow() {
		b.wait /= 2 // The estimate is so uncertain that to wait for all of it would leave the GPU idle for much of the time.
	}
}

// probe lets idle leases have a slice when nothing reports whether they have work.
func (s *Scheduler) probe() {
	if s.sensors.processAt != 0 && s.last-s.sensors.processAt < sensorTimeout {
		return
	}
	for _, m := range s.members {
		if m.own.idle && s.last >= m.own.since+max(m.own.rest, sensorTimeout) {
			s.wakeUp(m)
		}
	}
}
