package quota

import "time"

// trial lets a lease with low latency have the GPU for itself for a moment, to see whether it keeps it busy then: next to kernels that
// the GPU does not interrupt it gets nearly nothing next to the slices, and what it uses does not show that it would use more.
type trial struct {
	lease *member
	from  time.Duration
	until time.Duration // 0: it has not begun
}

const (
	trialLength = time.Second
	// firstTrial and laterTrial are the times to the first two trials after a lease came next to the others, and to each one after them.
	// For laterTrial a lease that starves has slices.
	firstTrial, laterTrial = 10 * time.Second, 5 * time.Minute
	// starvedUse is the part of a trial for which a lease keeps the GPU busy if it starves: its requests wait.
	starvedUse = 0.8
	// hardlyAny is the use from which on a lease does not starve.
	hardlyAny = 0.15
)

// tryLowLatency begins a trial, or ends one. Without the series nothing shows for how long the GPU is busy in it.
func (s *Scheduler) tryLowLatency() {
	if s.clearing.trial.lease != nil {
		s.endTrial()
		return
	}
	for _, m := range s.light {
		u := &m.low
		use := u.useOver(shareWindow)
		if s.last < u.tryAt || use == 0 || use >= hardlyAny || len(s.in) == 0 || s.clearing.part > 0 || !s.hasSeries() {
			continue
		}
		u.trials++
		u.tryAt = s.last + laterTrial
		if u.trials == 1 {
			u.tryAt = s.last + firstTrial
		}
		s.clearing.trial = trial{lease: m}
		s.clearing.due, s.clearing.now = s.last, true
		return
	}
}

// endTrial ends a trial when the samples of all of it are known. A lease that starves has slices for a while.
func (s *Scheduler) endTrial() {
	t := s.clearing.trial
	switch {
	case !s.isLight(t.lease) || len(s.in) == 0 || !s.hasSeries():
		s.clearing.trial = trial{}
	case t.until != 0 && s.tracks[0].upTo >= t.until:
		s.clearing.trial = trial{}
		busy, known := s.tracks[0].busyPart(t.from, t.until)
		if known {
			s.noteNeed(t.lease, busy)
		}
		if known && busy >= starvedUse {
			t.lease.low.over, t.lease.low.starves, t.lease.low.tryAt = true, true, s.last+laterTrial
			t.lease.deficit, s.stale = 0, true
		}
	}
}

// busyPart is the part of a time in which the GPU was busy; not known without samples of all of it.
func (t *track) busyPart(from, to time.Duration) (part float64, known bool) {
	var idle, covered time.Duration
	for _, p := range t.periods {
		over := overlap(from, to, p.from, p.to)
		covered += over
		idle += time.Duration(float64(p.idle) * float64(over) / float64(max(p.to-p.from, 1)))
	}
	return 1 - float64(idle)/float64(max(covered, 1)), covered >= to-from-time.Millisecond
}
