package quota

import (
	"cmp"
	"slices"
	"time"
)

// Config is how one GPU is time-sliced. The zero value works.
type Config struct {
	// Round is the time in which every lease gets its share once. 0: 1 s, or 2 s with more than four leases.
	Round time.Duration
	// Dither is the random part by which a slice is longer or shorter. Without it the slices interfere with the driver's
	// sampling, and the estimates stay wrong by percentage points. 0: 0.15.
	Dither float64
	// MinQuantum is the shortest slice. 0: 30 ms. A slice is never shorter than 20 times the measured time of a switch.
	MinQuantum time.Duration
	// MaxFrozen is the longest time that a lease is frozen without a break, whatever its share. 0: 5 s.
	MaxFrozen time.Duration
	// SamplePeriod is the assumed time between the driver's utilisation samples until it is measured. 0: 139 ms, 72 in ten
	// seconds.
	SamplePeriod time.Duration
	// Concurrent lets all leases run concurrently and only accounts.
	Concurrent bool
	// Fallback lets all leases run concurrently for a while when they do not use their slices: exclusive slices of leases
	// that wait for the host waste the GPU. It needs Raw.
	Fallback bool
	// Raw: the driver reports all its samples, not the newest of each process.
	Raw bool
	// Rand returns numbers in [0, 1); nil: no dither.
	Rand func() float64
}

// Kind is what to do next.
type Kind string

// The kinds of action.
const (
	Wait   Kind = "wait"
	Freeze Kind = "freeze"
	Thaw   Kind = "thaw"
	// Renew moves the thaw deadline of a lease that stays frozen. It needs no report.
	Renew Kind = "renew"
)

// Action is the next thing to do. Carry it out, report it with Froze or Thawed, and call Next again.
type Action struct {
	Kind  Kind
	Lease string // freeze, thaw, renew
	// Until is the latest time for the next call of Next (wait), or the thaw deadline of the lease (freeze, renew): the time at
	// which it must be thawed even if the scheduler is never called again. It must be stored before the freeze. It is at most
	// 1.5 s ahead; the scheduler thaws the lease or renews the deadline half a second before it.
	Until  time.Duration
	Reason string
	// ReadSamples (with a thaw): read the driver's samples now and call Observe, because samples from this lease's freeze are
	// replaced soon after the thaw. The thaw need not wait for it, and it may be omitted.
	ReadSamples bool
}

// Scheduler shares the time of one GPU by deficit round robin that charges the backlog: the queued work of a frozen lease
// continues to run, so a slice lasts from the thaw until that work is done, and time beyond the grant is charged to the
// lease's next slices. The zero value is not usable: call NewScheduler. It is not safe for concurrent use.
//
// Times are monotonic and start at any fixed moment.
type Scheduler struct {
	cfg        Config
	members    []*member // sorted by lease
	phase      phase
	current    *member // the lease whose slice it is, in phases sliceRuns and backlogRuns
	started    bool    // current has been thawed in this slice
	start      time.Duration
	until      time.Duration
	lastPicked string
	last       time.Duration // accounted up to this time
	switchTime time.Duration // duration of a freeze or a thaw, smoothed
	fallback   fallback
	period     period
	reason     string
}

// phase is what the GPU is doing.
type phase int

const (
	concurrent  phase = iota // no lease is frozen
	sliceRuns                // current runs, the others are frozen
	backlogRuns              // all are frozen, the queued work of current still runs
	allCapped                // all are frozen, because all have reached their caps
)

// member is a lease with the scheduler's state of it.
type member struct {
	Member
	weight  float64 // its part of its grant's share, among the participants
	deficit time.Duration
	budget  time.Duration // what is left of its cap
	cap     float64       // its part of its grant's cap; 0: none
	removed bool

	frozen           bool
	frozenAt         time.Duration
	freezeFailed     bool          // its state is unknown until it is thawed
	overdue          bool          // thawed early, because it was frozen for MaxFrozen
	retryAt          time.Duration // no action on it before this
	failures         int
	unfreezableUntil time.Duration // freezing it failed repeatedly: it is not frozen before this

	backlog   backlogEstimate
	usage     Usage
	intervals []interval
	busyAt    time.Duration // the newest sample that names it
	idle      bool          // it has the GPU open but does nothing
}

// NewScheduler returns a scheduler without leases.
func NewScheduler(cfg Config) *Scheduler {
	s := &Scheduler{}
	s.Configure(cfg)
	return s
}

// Configure changes the settings from the next slice on.
func (s *Scheduler) Configure(cfg Config) {
	if cfg.Dither == 0 {
		cfg.Dither = 0.15
	}
	if cfg.MinQuantum == 0 {
		cfg.MinQuantum = 30 * time.Millisecond
	}
	if cfg.MaxFrozen == 0 {
		cfg.MaxFrozen = 5 * time.Second
	}
	if cfg.SamplePeriod == 0 {
		cfg.SamplePeriod = 139 * time.Millisecond
	}
	s.cfg = cfg
}

// SetMembers sets the leases. A new one, and one that was inactive, starts without credit or debt. A frozen one that is
// missing from the list is thawed before it is removed.
func (s *Scheduler) SetMembers(now time.Duration, list []Member) {
	s.account(now)
	seen := map[string]bool{}
	changed := false
	for _, m := range list {
		seen[m.Lease] = true
		i, ok := slices.BinarySearchFunc(s.members, m.Lease, func(a *member, lease string) int { return cmp.Compare(a.Lease, lease) })
		if !ok {
			s.members = slices.Insert(s.members, i, &member{Member: m, busyAt: now})
			changed = true
			continue
		}
		old := s.members[i]
		if m.Active && !old.Active || old.removed {
			old.deficit, old.idle, old.busyAt = 0, false, now
			changed = true
		}
		old.Member, old.removed = m, false
	}
	for _, m := range s.members {
		if !seen[m.Lease] && !m.removed {
			m.removed, m.Active, changed = true, false, true
		}
	}
	s.forget()
	s.updateWeights()
	if changed {
		s.fallback.reset(now)
	}
}

// forget drops the removed members that are thawed.
func (s *Scheduler) forget() {
	s.members = slices.DeleteFunc(s.members, func(m *member) bool { return m.removed && !m.frozen })
	if s.current != nil && !slices.Contains(s.members, s.current) {
		s.current, s.phase = nil, concurrent
	}
}

// updateWeights divides every grant's share and cap among its participants.
func (s *Scheduler) updateWeights() {
	n := map[string]int{}
	for _, m := range s.members {
		if s.participates(m) {
			n[m.Grant]++
		}
	}
	for _, m := range s.members {
		k := float64(max(1, n[m.Grant]))
		m.weight, m.cap = max(m.Share, 1e-6)/k, 0
		if m.Cap != nil && *m.Cap < 1 {
			m.cap = max(*m.Cap, 0.001) / k
		}
	}
}

// participates reports whether a lease gets slices.
func (s *Scheduler) participates(m *member) bool {
	return m.Active && !m.NeverFreeze && !m.Held && !m.idle && !m.removed && s.last >= m.unfreezableUntil
}

func (s *Scheduler) participants() []*member {
	var out []*member
	for _, m := range s.members {
		if s.participates(m) {
			out = append(out, m)
		}
	}
	return out
}

// Froze reports a freeze to the scheduler: when it was done, its duration, and whether it failed. After a failure the lease
// is thawed, and after three failures in a row it is not frozen for a minute. The other leases then get less than their
// share, but they are not blocked.
func (s *Scheduler) Froze(lease string, now, duration time.Duration, err error) {
	s.account(now)
	m := s.find(lease)
	if m == nil || m.frozen {
		return
	}
	m.frozen, m.frozenAt = true, now
	if err != nil {
		m.freezeFailed = true
		if m.failures++; m.failures >= 3 {
			m.failures, m.unfreezableUntil = 0, now+time.Minute
			s.updateWeights()
		}
		return
	}
	m.failures = 0
	s.switchTime += (duration - s.switchTime) / 8
	m.backlog.froze(now)
}

// Thawed reports a thaw to the scheduler, requested or not, and whether it failed. A lease that no longer exists counts as
// thawed.
func (s *Scheduler) Thawed(lease string, now, duration time.Duration, err error) {
	s.account(now)
	m := s.find(lease)
	if m == nil || !m.frozen {
		return
	}
	if err != nil {
		m.retryAt = now + 50*time.Millisecond
		return
	}
	m.usage.Frozen += now - m.frozenAt
	m.frozen, m.freezeFailed = false, false
	m.backlog.thawed(now)
	s.switchTime += (duration - s.switchTime) / 8
	if m.overdue {
		// It takes over the slice: the lease that had it is frozen next.
		m.overdue = false
		if s.current != nil && s.current != m {
			s.chargeSlice(now)
		}
		s.beginSlice(m, now, s.quantum())
	}
	s.forget()
}

func (s *Scheduler) find(lease string) *member {
	i, ok := slices.BinarySearchFunc(s.members, lease, func(a *member, lease string) int { return cmp.Compare(a.Lease, lease) })
	if !ok {
		return nil
	}
	return s.members[i]
}

// Next returns the next action. It does not return the same freeze or thaw again after that was reported.
func (s *Scheduler) Next(now time.Duration) Action {
	now = max(now, s.last)
	s.account(now)
	if s.fallback.ended(now) {
		for _, m := range s.members {
			m.backlog.halve()
		}
	}
	s.updateWeights()
	in := s.participants()
	enforced, why := s.enforced(in)
	s.reason = why
	if a, ok := s.thawDue(now, enforced); ok {
		return a
	}
	if !enforced {
		s.phase, s.current = concurrent, nil
		until := now + time.Second
		for _, m := range s.members {
			m.deficit = 0 // no other lease was delayed
			if m.frozen {
				until = min(until, m.retryAt)
			}
		}
		return Action{Kind: Wait, Until: until, Reason: why}
	}
	if s.current != nil && !slices.Contains(in, s.current) {
		s.current, s.phase = nil, concurrent
	}
	for {
		switch s.phase {
		case concurrent, allCapped:
			m, q, at := s.pickNext(in, now)
			if m == nil {
				s.phase, s.current = allCapped, nil
				if a, ok := s.freeze(in, nil, now, "it has reached its cap"); ok {
					return a
				}
				return Action{Kind: Wait, Until: s.waitLimit(in, nil, at), Reason: "all leases have reached their caps"}
			}
			s.beginSlice(m, now, q)
		case sliceRuns:
			if a, ok := s.freeze(in, s.current, now, "another lease has its slice"); ok {
				return a
			}
			if s.current.frozen && now < s.current.retryAt {
				return Action{Kind: Wait, Until: s.current.retryAt, Reason: "a thaw failed and is repeated"}
			}
			if s.current.frozen {
				return Action{Kind: Thaw, Lease: s.current.Lease, Reason: "its slice begins", ReadSamples: true}
			}
			if !s.started {
				s.started, s.until, s.start = true, now+(s.until-s.start), now
				s.current.usage.Slices++
			}
			// A slice is never shorter than quantum, even when another lease must be thawed: that one is thawed at the same time.
			if end := max(s.waitLimit(in, s.current, s.until), min(s.until, s.start+s.quantum())); now < end {
				return Action{Kind: Wait, Until: s.thawDeadline(in, end), Reason: "a slice runs"}
			}
			if s.extendSlice(in, now) {
				continue
			}
			s.phase = backlogRuns
		case backlogRuns:
			if a, ok := s.freeze(in, nil, now, "its slice ends"); ok {
				return a
			}
			if end := s.waitLimit(in, s.current, s.current.frozenAt+s.current.backlog.estimate); now < end {
				return Action{Kind: Wait, Until: end, Reason: "its queued work still runs"}
			}
			s.chargeSlice(now)
			s.phase = concurrent
		}
	}
}

// enforced reports whether leases are frozen for one another, and if not, why.
func (s *Scheduler) enforced(in []*member) (bool, string) {
	switch {
	case len(in) == 0:
		return false, "no lease uses the GPU"
	case s.cfg.Concurrent:
		return false, "all leases run concurrently: shares are not enforced by configuration"
	case s.last < s.fallback.until:
		return false, s.fallback.reason
	case len(in) == 1 && in[0].cap == 0:
		return false, "a single lease is never frozen"
	}
	var need time.Duration
	for _, m := range in {
		need += s.quantum() + m.backlog.estimate + 2*s.switchTime
	}
	if need > s.cfg.MaxFrozen+s.shortest(in) {
		s.fallback.start(s.last, "all leases run concurrently: slices and queued work of all leases take longer than a lease may be frozen")
		return false, s.fallback.reason
	}
	return true, ""
}

// shortest is the shortest slice with backlog: a lease does not wait for its own.
func (s *Scheduler) shortest(in []*member) time.Duration {
	least := in[0].backlog.estimate
	for _, m := range in {
		least = min(least, m.backlog.estimate)
	}
	return least + s.quantum()
}

// thawDue thaws leases that must not be frozen: all when shares are not enforced, those that do not participate, and those
// that have been frozen for MaxFrozen.
func (s *Scheduler) thawDue(now time.Duration, enforced bool) (Action, bool) {
	for _, m := range s.members {
		if !m.frozen {
			continue
		}
		why := ""
		switch {
		case !enforced || !s.participates(m):
			why = "it waits for no other lease"
		case m.freezeFailed:
			why = "freezing it failed"
		case now >= m.frozenAt+s.cfg.MaxFrozen && m != s.current:
			why, m.overdue = "it was frozen for the longest allowed time", true
		default:
			continue
		}
		if now < m.retryAt {
			continue
		}
		return Action{Kind: Thaw, Lease: m.Lease, Reason: why}, true
	}
	return Action{}, false
}

// freeze returns a freeze of the next lease that runs, except one.
func (s *Scheduler) freeze(in []*member, but *member, now time.Duration, why string) (Action, bool) {
	for _, m := range in {
		if m != but && !m.frozen {
			return Action{Kind: Freeze, Lease: m.Lease, Until: now + s.cfg.MaxFrozen, Reason: why}, true
		}
	}
	return Action{}, false
}

// beginSlice starts a slice of a lease. Its time counts from the thaw.
func (s *Scheduler) beginSlice(m *member, now, q time.Duration) {
	s.phase, s.current, s.started, s.start, s.until, s.lastPicked = sliceRuns, m, false, now, now+q, m.Lease
}

// extendSlice continues a slice when the same lease would get the next one: a freeze would cost the time of the backlog, and
// a backlog that is interrupted by a thaw is estimated too short.
func (s *Scheduler) extendSlice(in []*member, now time.Duration) bool {
	saved := make([]time.Duration, len(in))
	for i, m := range in {
		saved[i] = m.deficit
	}
	s.current.deficit -= now - s.start + s.current.backlog.estimate
	if m, q, _ := s.pickNext(in, now); m == s.current {
		s.current.deficit += s.current.backlog.estimate // not spent yet
		s.start, s.until = now, now+q
		return true
	}
	for i, m := range in {
		m.deficit = saved[i]
	}
	return false
}

// chargeSlice ends the slice and charges the time since its start, with the backlog, to the lease.
func (s *Scheduler) chargeSlice(now time.Duration) {
	if s.current != nil && s.started {
		s.current.deficit -= now - s.start
		s.current.backlog.contended(now)
	}
	s.started = false
}

// round is the time in which every lease gets its share once.
func (s *Scheduler) round(n int) time.Duration {
	switch {
	case s.cfg.Round != 0:
		return s.cfg.Round
	case n > 4:
		return 2 * time.Second
	}
	return time.Second
}

// quantum is the shortest slice.
func (s *Scheduler) quantum() time.Duration {
	return min(max(s.cfg.MinQuantum, 40*s.switchTime), s.cfg.MaxFrozen/8)
}

// waitLimit moves a time forward so that no lease except one is frozen for too long, with time for the backlog and the switch.
func (s *Scheduler) waitLimit(in []*member, but *member, t time.Duration) time.Duration {
	margin := 2*s.switchTime + 5*time.Millisecond
	if but != nil && !but.frozen {
		margin += but.backlog.estimate
	}
	for _, m := range in {
		if m != but && m.frozen {
			t = min(t, m.frozenAt+s.cfg.MaxFrozen-margin)
		}
	}
	return t
}

// thawDeadline moves a time forward to the first moment at which a lease has been frozen for MaxFrozen.
func (s *Scheduler) thawDeadline(in []*member, t time.Duration) time.Duration {
	for _, m := range in {
		if m.frozen {
			t = min(t, m.frozenAt+s.cfg.MaxFrozen)
		}
	}
	return t
}

// pickNext goes through the leases in order, credits each with its part of a round, and takes the first that has enough for a
// slice. When all have reached their caps it returns nil and the time when the first has budget again.
func (s *Scheduler) pickNext(in []*member, now time.Duration) (*member, time.Duration, time.Duration) {
	r, q := s.round(len(in)), s.quantum()
	var total float64
	at := now + time.Hour
	for _, m := range in {
		if wait := s.capWait(m, len(in), q); wait == 0 {
			total += m.weight
		} else {
			at = min(at, now+wait)
		}
	}
	first := slices.IndexFunc(in, func(m *member) bool { return m.Lease > s.lastPicked })
	credit := func(m *member) {
		part := time.Duration(m.weight / total * float64(r))
		// The limit keeps a lease from saving up for a long slice. Without its second term a lease with a long backlog and a
		// small share would never run.
		m.deficit = min(m.deficit+part, max(2*part, m.backlog.estimate+part+q))
	}
	if m := s.urgent(in, now, q); m != nil {
		if total > 0 {
			credit(m) // its credit comes early
		}
		return m, max(q, min(m.deficit-m.backlog.estimate, r)), 0
	}
	if total == 0 {
		return nil, 0, at
	}
	// A lease with debt needs several credits to pay it back. The bound is only against a defect.
	for i := max(first, 0); i < max(first, 0)+100000; i++ {
		m := in[i%len(in)]
		if s.capWait(m, len(in), q) != 0 {
			continue
		}
		credit(m)
		slice := m.deficit - m.backlog.estimate
		if m.cap != 0 {
			slice = min(slice, m.budget-m.backlog.estimate)
		}
		if slice >= q {
			if s.cfg.Rand != nil {
				slice += time.Duration(float64(slice) * s.cfg.Dither * (2*s.cfg.Rand() - 1))
			}
			return m, max(slice, q), 0
		}
	}
	return in[max(first, 0)], q, 0
}

// urgent is the frozen lease that reaches MaxFrozen before another slice could end.
func (s *Scheduler) urgent(in []*member, now, q time.Duration) *member {
	var out *member
	var longest time.Duration
	for _, m := range in {
		if m.frozen && (out == nil || m.frozenAt < out.frozenAt) {
			out = m
		}
	}
	for _, m := range in {
		if m != out {
			longest = max(longest, m.backlog.estimate)
		}
	}
	if out == nil || now+q+longest+4*s.switchTime+10*time.Millisecond < out.frozenAt+s.cfg.MaxFrozen {
		return nil
	}
	return out
}

// capWait is the time until a lease's cap allows a slice. That is once a round, because each of many short slices would have
// the error of the backlog estimate.
func (s *Scheduler) capWait(m *member, n int, q time.Duration) time.Duration {
	lack := max(q+m.backlog.estimate, time.Duration(0.9*m.cap*float64(s.round(n)))) - m.budget
	if m.cap == 0 || lack <= 0 {
		return 0
	}
	return max(time.Millisecond, time.Duration(float64(lack)/m.cap))
}
