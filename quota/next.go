package quota

import (
	"slices"
	"time"
)

// The thaw deadline of a frozen lease: at most deadlineAhead from now, and the scheduler acts deadlineMargin before it.
const (
	deadlineAhead  = 1500 * time.Millisecond
	deadlineMargin = 500 * time.Millisecond
	// renewAgain is the shortest time between two renewals.
	renewAgain = 100 * time.Millisecond
)

// outsideBacklog is how long the queued work of a lease that is frozen without a slice may run: its length is not known yet.
const outsideBacklog = 150 * time.Millisecond

// Next returns the next action. It does not return the same freeze or thaw again after that was reported.
func (s *Scheduler) Next(now time.Duration) Action {
	now = max(now, s.last)
	s.account(now)
	s.refresh()
	enforced, why := s.enforced(now)
	s.reason = why
	if a, ok := s.thawDue(now, enforced); ok {
		return a
	}
	if a, ok := s.limit(now); ok {
		return a
	}
	if !enforced {
		s.stop()
		for _, m := range s.members {
			m.deficit = 0 // no other lease was delayed
		}
		return s.wait(now, now+time.Second, why)
	}
	if s.enforces() && slices.ContainsFunc(s.set, func(m *member) bool { return !slices.Contains(s.in, m) && !s.onTrial(m) }) {
		s.stop()
	}
	for {
		if a, ok := s.step(now); ok {
			return a
		}
	}
}

// stop ends the slice: its leases changed, or shares are not enforced.
func (s *Scheduler) stop() {
	s.closeFreezes()
	s.endSet()
	s.enter(concurrent)
}

// step goes on with the slices: it returns an action, or the phase has changed.
func (s *Scheduler) step(now time.Duration) (Action, bool) {
	switch s.phase {
	case sliceOpens:
		return s.openSlice(now)
	case sliceRuns:
		return s.runSlice(now)
	case sliceCloses:
		return s.closeSlice(now)
	case backlogRuns:
		if end := s.waitLimit(s.until); now < end {
			return s.wait(now, end, "its queued work still runs"), true
		}
		s.endSet()
		return s.pick(now)
	default:
		return s.pick(now)
	}
}

// pick begins the next slice. It returns an action while leases with low latency have the GPU for themselves, or all have reached their
// caps.
func (s *Scheduler) pick(now time.Duration) (Action, bool) {
	if s.phase == cleared || s.clears(now) {
		if a, ok := s.clear(now); ok {
			return a, true
		}
	}
	if m := s.trialDue(now); m != nil && s.urgent(now, s.trialLength(m)) == nil {
		s.beginTrial(m, now)
		return Action{}, false
	}
	if enforced, why := s.enforced(now); !enforced { // after a trial
		s.stop()
		if a, ok := s.thawDue(now, false); ok {
			return a, true
		}
		return s.wait(now, now+time.Second, why), true
	}
	m, q, at := s.pickNext(now)
	if m != nil {
		s.beginSlice(m, now, q)
		return Action{}, false
	}
	s.endSet()
	s.enter(allCapped)
	s.log()
	if a, ok := s.freeze(now, "it has reached its cap"); ok {
		return a, true
	}
	return s.wait(now, s.waitLimit(at), "all leases have reached their caps"), true
}

func (s *Scheduler) openSlice(now time.Duration) (Action, bool) {
	why := "another lease has its slice"
	if s.onTrial(s.set[0]) {
		why = "what another lease uses alone is measured"
	}
	if a, ok := s.freeze(now, why); ok {
		return a, true
	}
	if a, ok := s.thaw(now); ok {
		return a, true
	}
	s.until, s.start = now+(s.until-s.start), now
	s.enter(sliceRuns)
	s.dither()
	for _, m := range s.set {
		s.endFreezes(m) // A lease that joined was not thawed.
		m.usage.slices++
	}
	s.log()
	return Action{}, false
}

func (s *Scheduler) runSlice(now time.Duration) (Action, bool) {
	if a, ok := s.freeze(now, "another lease has its slice"); ok {
		return a, true
	}
	if a, ok := s.thaw(now); ok {
		return a, true
	}
	// A slice is never shorter than quantum, even when another lease must be thawed: that one is thawed at the same time.
	end := max(s.waitLimit(s.until), min(s.until, s.start+s.quantum()))
	interrupted := s.preempting != nil || s.interrupts(now)
	if interrupted {
		end = now
	}
	if now < end {
		return s.wait(now, s.clearingWait(now, s.thawDeadline(end)), "a slice runs"), true
	}
	if !interrupted && !s.clears(now) && s.extendSlice(now) {
		return Action{}, false
	}
	s.enter(sliceCloses)
	return Action{}, false
}

func (s *Scheduler) closeSlice(now time.Duration) (Action, bool) {
	if len(s.set) == 0 || s.onTrial(s.set[0]) {
		if len(s.set) != 0 {
			s.closeTrial(s.set[0])
		}
		s.endSet()
		if a, ok := s.limit(now); ok { // the leases that were frozen for the trial
			return a, true
		}
		return s.pick(now)
	}
	if a, ok := s.freezeSet(now); ok {
		return a, true
	}
	s.until = s.startFreezes()
	s.enter(backlogRuns)
	return Action{}, false
}

// wait returns a wait, or the renewal of a thaw deadline that would end it: to renew it now needs no wake-up of its own.
func (s *Scheduler) wait(now, until time.Duration, why string) Action {
	until = s.limitWait(now, min(until, now+time.Second))
	for _, m := range s.members {
		if m.frozen && m.retryAt > now {
			until = min(until, m.retryAt)
		}
	}
	for _, m := range s.members {
		if !m.frozen || m.deadline-deadlineMargin >= until {
			continue
		}
		if m.deadline < now+deadlineAhead-renewAgain {
			m.deadline = now + deadlineAhead
			return Action{Kind: Renew, Lease: m.Lease, Until: m.deadline, Reason: "it stays frozen: " + why}
		}
		until = m.deadline - deadlineMargin
	}
	return Action{Kind: Wait, Until: max(until, now+time.Microsecond), Reason: why}
}

// enforced reports whether leases are frozen for one another, and if not, why.
func (s *Scheduler) enforced(now time.Duration) (bool, string) {
	switch {
	case (s.inTrial() || s.trialDue(now) != nil || s.needsClearing()) && !s.cfg.Concurrent && !s.fallback.on(now):
		return true, ""
	case len(s.in) == 0 && len(s.free) > 1:
		return false, "no lease keeps the GPU busy"
	case len(s.in) == 0:
		return false, "no lease uses the GPU"
	case s.cfg.Concurrent:
		return false, "all leases run concurrently: shares are not enforced by configuration"
	case len(s.in) == 1 && len(s.free) > 0 && s.in[0].cap == 0:
		return false, "one lease needs more than its share: no lease that uses less is frozen"
	case s.fallback.on(now):
		return false, s.fallback.reason
	case !s.contended() && !slices.ContainsFunc(s.in, func(m *member) bool { return m.cap != 0 }):
		return false, "a lease without a competitor is never frozen"
	}
	var need, longest time.Duration
	for _, m := range s.in {
		need += s.quantum() + m.backlog.wait + 2*s.switchTime
		longest = max(longest, m.backlog.wait)
	}
	// A lease does not wait for its own slice.
	if len(s.in) > 1 && need-s.quantum()-longest > s.cfg.MaxFrozen {
		for _, m := range s.in {
			m.backlog.restart(0) // the backlog may be shorter then
		}
		s.limitCredits()
		s.fallback.start(
			now, "all leases run concurrently for a while: slices and queued work of all leases take longer than a lease may be frozen",
		)
		return false, s.fallback.reason
	}
	return true, ""
}

// contended reports whether two leases use the same GPU.
func (s *Scheduler) contended() bool {
	for i, m := range s.in {
		for _, x := range s.in[i+1:] {
			if m.overlaps(&x.Member) {
				return true
			}
		}
	}
	return false
}

// thawDue thaws leases that must not be frozen: all when shares are not enforced, those that do not participate, and those
// that have been frozen for MaxFrozen.
func (s *Scheduler) thawDue(now time.Duration, enforced bool) (Action, bool) {
	for _, m := range s.members {
		if !m.frozen || now < m.retryAt {
			continue
		}
		why := ""
		switch {
		case s.runsFree(m):
			continue
		case !enforced || !s.participates(m):
			why = "it waits for no other lease"
		case m.freezeFailed:
			why = "freezing it failed"
		case now >= m.frozenAt+s.cfg.MaxFrozen && !m.running:
			why, m.overdue = "it was frozen for the longest allowed time", true
		default:
			continue
		}
		return Action{Kind: Thaw, Lease: m.Lease, Reason: why}, true
	}
	return Action{}, false
}

// freeze returns a freeze of the next lease that runs and is not in the set.
func (s *Scheduler) freeze(now time.Duration, why string) (Action, bool) {
	for _, m := range s.in {
		if !m.running && !m.frozen {
			s.disturbed = max(s.disturbed, now) + outsideBacklog
			return s.freezeOne(m, now, why), true
		}
	}
	if !s.inTrial() {
		return Action{}, false
	}
	for _, m := range s.free {
		if !m.running && !m.frozen && m.demand.class == measured && !s.lowLatency(m) && now >= m.retryAt {
			return s.freezeOne(m, now, why), true
		}
	}
	return Action{}, false
}

// freezeSet returns a freeze of the next lease of the set that runs, or of another one.
func (s *Scheduler) freezeSet(now time.Duration) (Action, bool) {
	for _, m := range s.set {
		if !m.frozen {
			return s.freezeOne(m, now, "its slice ends"), true
		}
	}
	return s.freeze(now, "another lease's queued work runs")
}

func (s *Scheduler) freezeOne(m *member, now time.Duration, why string) Action {
	m.deadline = now + deadlineAhead
	return Action{Kind: Freeze, Lease: m.Lease, Until: m.deadline, Reason: why}
}

// thaw returns a thaw of the next lease of the set that is frozen, or a wait until that can be tried again.
func (s *Scheduler) thaw(now time.Duration) (Action, bool) {
	for _, m := range s.set {
		if !m.frozen {
			continue
		}
		if now < m.retryAt {
			return s.wait(now, m.retryAt, "a thaw failed and is repeated"), true
		}
		return Action{Kind: Thaw, Lease: m.Lease, Reason: "its slice begins"}, true
	}
	return Action{}, false
}

// beginSlice starts a slice of a lease, and of leases that use none of its GPUs. Its time counts from the thaw.
func (s *Scheduler) beginSlice(m *member, now, q time.Duration) {
	s.endSet()
	s.enter(sliceOpens)
	s.leftover, s.start, s.until, s.lastPicked = 0, now, now+q, m.Lease
	if s.preempting == m {
		s.preempting = nil
	}
	s.join(m)
	if len(s.tracks) == 1 {
		return
	}
	first := slices.Index(s.in, m)
	for i := range s.in {
		x := s.in[(first+i)%len(s.in)]
		if !x.running && s.capWait(x, s.quantum()) == 0 &&
			!slices.ContainsFunc(s.set, func(y *member) bool { return x.overlaps(&y.Member) }) {
			s.join(x)
		}
	}
}

// dither ends a slice earlier that another lease's longest freeze limits, by a random part. Otherwise it always ends at the
// same point of the work of a regular load.
func (s *Scheduler) dither() {
	limit := s.waitLimit(s.until)
	if limit < s.until && s.cfg.Rand != nil {
		s.until = limit - time.Duration(s.cfg.Dither*s.cfg.Rand()*float64(limit-s.start))
	}
}

// join adds a lease to the set.
func (s *Scheduler) join(m *member) {
	s.set = append(s.set, m)
	m.running = true
	m.wait, m.measures = s.plan(m)
}

// endSet ends the slice without a charge.
func (s *Scheduler) endSet() {
	s.interruptTrial()
	for _, m := range s.set {
		m.running = false
	}
	s.set = s.set[:0]
}

// extendSlice continues a slice when the same lease would get the next one: a freeze would cost the time of the backlog.
func (s *Scheduler) extendSlice(now time.Duration) bool {
	if s.onTrial(s.set[0]) || s.trialDue(now) != nil {
		return false
	}
	for _, m := range s.in {
		m.saved = m.deficit
	}
	for _, m := range s.set {
		m.deficit -= m.own.charge(now-s.start) + m.backlog.mean
	}
	if m, q, _ := s.pickNext(now); m == s.set[0] && s.waitLimit(now+q) > now {
		for _, m := range s.set {
			m.deficit += m.backlog.mean // not spent yet
		}
		s.start, s.until = now, now+q
		s.dither()
		return true
	}
	for _, m := range s.in {
		m.deficit = m.saved
	}
	return false
}
