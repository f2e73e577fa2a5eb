package quota

import "time"

const (
	// mostTrials is after how many trials a lease is heavy if they did not show what it leaves idle, and unansweredTrials the same if the
	// driver never answered.
	mostTrials, unansweredTrials = 8, 2
	// mostTried is how many leases may share the GPU for trials: each takes time from all others.
	mostTried = 8
	// trialPause is the time between two trials of a lease: the driver's answer about the first is expected meanwhile.
	trialPause = time.Second
	// trialWithin is how long a lease waits for its first trial.
	trialWithin = 3 * time.Second
	// resultWithin is when the samples of a trial are known; a driver may lag.
	resultWithin = 2 * time.Second
	// longTrial is the length of a trial of a lease that seems to be short: what others have queued may run for half of it.
	longTrial = time.Second
)

// trialDue is a lease whose trial begins now: for a moment it has the GPU to itself, so that it is seen what it leaves idle.
func (s *Scheduler) trialDue(now time.Duration) *member {
	if !s.tries() || s.awaitsAnswer(now) {
		return nil
	}
	var out *member
	for _, m := range s.free {
		d := &m.demand
		if d.class != measured {
			continue
		}
		if m.frozen {
			return nil // of an earlier trial: it runs first
		}
		if (d.trials == 0 || now >= d.trialAt+trialPause) && d.trials < mostTrials && (out == nil || d.trials < out.demand.trials) {
			out = m
		}
	}
	return out
}

// tries reports whether leases have trials: not one that is alone, not those of many, and not while all run side by side.
func (s *Scheduler) tries() bool {
	n := len(s.in) + len(s.free)
	return n > 1 && n <= mostTried && s.fallback.until == 0
}

// awaitsAnswer reports whether the next trial is later: nothing is known of the sensors yet, or there is no series, and no answer of the
// last trial: in one answer the trials of two leases are not distinguished.
func (s *Scheduler) awaitsAnswer(now time.Duration) bool {
	x := &s.sensors
	if x.seriesAt == 0 && x.processAt == 0 {
		return now < s.joined+trialWithin/2
	}
	answered := x.processAt
	if s.hasSeries() {
		answered = s.tracks[0].upTo
		return answered != 0 && s.tried > answered && now < s.tried+sensorTimeout
	}
	return answered != 0 && answered < s.tried && now < s.tried+sensorTimeout
}

// trialLength is so long that a trial has two whole periods of the sampler, after the queued work of others.
func (s *Scheduler) trialLength(m *member) time.Duration {
	switch {
	case m.demand.long && !s.slow():
		return min(longTrial, s.cfg.MaxFrozen/4)
	case s.slow():
		return s.cfg.MaxFrozen * 2 / 5
	case !s.hasSeries():
		return s.cfg.MaxFrozen / 6
	}
	queued := 100 * time.Millisecond
	for _, x := range s.in {
		queued += outsideBacklog / 3 * time.Duration(x.processCount()-1) // Each process has a queue of its own.
	}
	return min(max(s.samplePeriod(), 100*time.Millisecond)*7/2+queued, s.cfg.MaxFrozen/6)
}

func (s *Scheduler) beginTrial(m *member, now time.Duration) {
	s.endSet()
	s.enter(sliceOpens)
	s.leftover, s.start, s.until = 0, now, now+s.trialLength(m)
	s.set = append(s.set, m)
	m.running, m.wait, m.measures = true, 0, false
	m.demand.trials++
}

// interruptTrial ends the trial of a lease that is held, does nothing any more, or must wait for others: it shows nothing, and counts.
func (s *Scheduler) interruptTrial() {
	if s.phase != sliceOpens && s.phase != sliceRuns || len(s.set) != 1 || s.set[0].demand.class != measured {
		return
	}
	d := &s.set[0].demand
	d.trialFrom, d.trialAt, d.whole, s.tried = s.start, s.last, false, s.last
}

// closeTrial ends the trial of a lease. It is not frozen.
func (s *Scheduler) closeTrial(m *member) {
	m.demand.trialFrom, m.demand.trialAt, s.tried = s.start, s.last, s.last
	m.demand.inTrials += s.last - s.start
	m.demand.whole = true
	if unanswered := s.sensors.seriesAt == 0 &&
		s.sensors.processAt == 0; m.demand.trials >= mostTrials ||
		m.demand.trials >= unansweredTrials && unanswered {
		s.change(m, s.unmeasured(m)) // They did not show what it leaves idle.
	}
}

// onTrial reports whether the slice of a lease is a trial.
func (s *Scheduler) onTrial(m *member) bool { return m.demand.class == measured && s.runsFree(m) }

// busyPart is the part of a time in which the GPU was busy; not known without samples of all of it.
func (t *track) busyPart(from, to time.Duration) (part float64, known bool) {
	var idle, covered time.Duration
	for _, p := range t.periods {
		over := overlap(from, to, p.from, p.to)
		covered += over
		idle += time.Duration(float64(p.idle) * float64(over) / float64(max(p.to-p.from, 1)))
	}
	return 1 - float64(idle)/float64(max(covered, 1)), covered > 0 && covered >= to-from-time.Millisecond
}
