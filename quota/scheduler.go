package quota

import (
	"cmp"
	"slices"
	"time"
)

// Config is how one GPU's time is shared. The zero value works.
type Config struct {
	// Round is the time in which every lease gets its share once. 0: 1 s, or 2 s with more than four leases.
	Round time.Duration
	// Dither is by how much a slice is lengthened or shortened at random, as a part of it: without it the slices beat
	// with the driver's sampling and the estimates are wrong by points, however long they run. 0: 0.15.
	Dither float64
	// MinQuantum is the shortest slice worth a switch. 0: 30 ms. It is never below 20 times what a switch was seen to take.
	MinQuantum time.Duration
	// MaxFrozen is the longest that a lease is frozen at a stretch, whatever its share. 0: 5 s.
	MaxFrozen time.Duration
	// SamplePeriod is the time between the driver's utilisation samples until it was seen. 0: 139 ms, 72 in ten seconds.
	SamplePeriod time.Duration
	// Concurrent lets all run side by side and only accounts.
	Concurrent bool
	// Fallback lets all run side by side for a while when the slices are not filled: exclusive slices of leases that
	// wait for the host waste the GPU. Only raw samples tell.
	Fallback bool
	// Raw: the driver answers all its samples one by one, not the newest of each process.
	Raw bool
	// Rand gives numbers in [0, 1); nil: no dither.
	Rand func() float64
}

// Member is one lease on the GPU, or on a group of GPUs whose leases are gated together.
type Member struct {
	Lease string
	Grant string   // leases of one grant divide its Share and Cap
	Share float64  // of the grant, in any unit: shares are relative
	Cap   *float64 // of the grant, 0…1: never more of the GPU's time than this, even when it is idle; nil: no cap
	// Active: it has a process that holds the GPU.
	Active bool
	// NeverFreeze: it must never be frozen (a login, an adopted unit). It runs whenever it likes and is not accounted.
	NeverFreeze bool
}

// Kind is what to do next.
type Kind string

// The kinds of action.
const (
	Wait   Kind = "wait"
	Freeze Kind = "freeze"
	Thaw   Kind = "thaw"
)

// Action is the next thing to do. Carry it out, report it with Froze or Thawed, and ask again.
type Action struct {
	Kind  Kind
	Lease string // freeze, thaw
	// Until is when to ask again at the latest (wait), or when the lease must be thawed at the latest whatever happens
	// (freeze): write it where the thawing guard reads it before freezing.
	Until  time.Duration
	Reason string
	// ReadSamples (with a thaw): now is the time to read the driver's samples and Observe them, because what they tell of this
	// lease's freeze is lost soon after the thaw. It need not be waited for, and may be left out.
	ReadSamples bool
}

// Scheduler shares the time of one GPU by deficit round robin in which the drain is charged: a frozen lease's queued
// work still runs, so a slice lasts from the thaw until that work is done, and what it lasted longer than granted is
// paid back. The zero value is not usable: call NewScheduler. It is not safe for concurrent use.
//
// Times are monotonic, since any fixed moment of the caller's.
type Scheduler struct {
	cfg        Config
	members    []*member // sorted by lease
	phase      phase
	current    *member // whose slice it is, in phases run and drain
	started    bool    // cur was seen thawed in this slice
	start      time.Duration
	until      time.Duration
	lastPicked string
	last       time.Duration // accounted up to here
	switchTime time.Duration // what a freeze or a thaw takes, smoothed
	fallback   fallback
	period     period
	reason     string
}

// phase is what the GPU is doing.
type phase int

const (
	sideBySide  phase = iota // nobody is gated
	sliceRuns                // cur runs, the others are frozen
	backlogRuns              // all are frozen, cur's queued work runs out
	allCapped                // all are frozen, because all are at their caps
)

// member is a lease with what the scheduler knows of it.
type member struct {
	Member
	weight  float64 // its part of its grant's share, among the active
	deficit time.Duration
	budget  time.Duration // what is left of its cap
	cap     float64       // its part of its grant's cap; 0: none
	removed bool

	frozen           bool
	frozenAt         time.Duration
	freezeFailed     bool          // a freeze failed: its state is unknown until it is thawed
	overdue          bool          // thawed out of turn, because it was frozen for too long
	retryAt          time.Duration // no action on it before this
	failures         int
	unfreezableUntil time.Duration // it cannot be frozen: left alone until this

	backlog   backlogEstimate
	usage     Usage
	intervals []interval
	busyAt    time.Duration // the newest sample that names it
	idle      bool          // it holds the GPU but does nothing
}

// NewScheduler makes a scheduler without leases.
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

// SetMembers says which leases there are now. A new one, and one that was inactive, starts without credit or debt. A
// frozen one that is missing from the list is thawed first and forgotten then.
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

// forget drops the members that are gone and thawed.
func (s *Scheduler) forget() {
	s.members = slices.DeleteFunc(s.members, func(m *member) bool { return m.removed && !m.frozen })
	if s.current != nil && !slices.Contains(s.members, s.current) {
		s.current, s.phase = nil, sideBySide
	}
}

// updateWeights divides every grant's share and cap among its leases that run.
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

// participates tells whether a lease takes part in the round.
func (s *Scheduler) participates(m *member) bool {
	return m.Active && !m.NeverFreeze && !m.idle && !m.removed && s.last >= m.unfreezableUntil
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

// Froze reports a freeze: when it was done, how long it took, and whether it failed. After a failure the lease is
// thawed, and after three in a row left alone for a minute: an unfreezable lease costs the others their share, not
// their life.
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

// Thawed reports a thaw, asked for or not, and whether it failed. A lease that no longer exists counts as thawed.
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
		// It takes the slice over: the one that had it is frozen next.
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

// Next says what to do now. It never answers twice in a row with the same freeze or thaw once that was reported.
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
		s.phase, s.current = sideBySide, nil
		until := now + time.Second
		for _, m := range s.members {
			m.deficit = 0 // a debt to nobody
			if m.frozen {
				until = min(until, m.retryAt)
			}
		}
		return Action{Kind: Wait, Until: until, Reason: why}
	}
	if s.current != nil && !slices.Contains(in, s.current) {
		s.current, s.phase = nil, sideBySide
	}
	for {
		switch s.phase {
		case sideBySide, allCapped:
			m, q, at := s.pickNext(in, now)
			if m == nil {
				s.phase, s.current = allCapped, nil
				if a, ok := s.freeze(in, nil, now, "its cap is reached"); ok {
					return a
				}
				return Action{Kind: Wait, Until: s.waitLimit(in, nil, at), Reason: "all leases are at their caps"}
			}
			s.beginSlice(m, now, q)
		case sliceRuns:
			if a, ok := s.freeze(in, s.current, now, "it is another's slice"); ok {
				return a
			}
			if s.current.frozen && now < s.current.retryAt {
				return Action{Kind: Wait, Until: s.current.retryAt, Reason: "a thaw failed and is tried again"}
			}
			if s.current.frozen {
				return Action{Kind: Thaw, Lease: s.current.Lease, Reason: "its slice begins", ReadSamples: true}
			}
			if !s.started {
				s.started, s.until, s.start = true, now+(s.until-s.start), now
				s.current.usage.Slices++
			}
			// A slice is never cut to nothing, even when others are due: who is due is thawed beside it.
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
				return Action{Kind: Wait, Until: end, Reason: "queued work runs out"}
			}
			s.chargeSlice(now)
			s.phase = sideBySide
		}
	}
}

// enforced tells whether anybody is frozen for anybody, and if not, why.
func (s *Scheduler) enforced(in []*member) (bool, string) {
	switch {
	case len(in) == 0:
		return false, "nobody uses the GPU"
	case s.cfg.Concurrent:
		return false, "all run side by side: so it is configured"
	case s.last < s.fallback.until:
		return false, s.fallback.reason
	case len(in) == 1 && in[0].cap == 0:
		return false, "one lease alone is never frozen"
	}
	var need time.Duration
	for _, m := range in {
		need += s.quantum() + m.backlog.estimate + 2*s.switchTime
	}
	if need > s.cfg.MaxFrozen+s.shortest(in) {
		s.fallback.start(s.last, "all run side by side: slices and queued work of all leases take longer than a lease may be frozen")
		return false, s.fallback.reason
	}
	return true, ""
}

// shortest is the least slice and drain among some: a lease does not wait for its own.
func (s *Scheduler) shortest(in []*member) time.Duration {
	least := in[0].backlog.estimate
	for _, m := range in {
		least = min(least, m.backlog.estimate)
	}
	return least + s.quantum()
}

// thawDue thaws whom nothing may keep frozen: all when nobody is gated, those who do not contend, and those who were
// frozen for as long as is allowed.
func (s *Scheduler) thawDue(now time.Duration, enforced bool) (Action, bool) {
	for _, m := range s.members {
		if !m.frozen {
			continue
		}
		why := ""
		switch {
		case !enforced || !s.participates(m):
			why = "it has nobody to wait for"
		case m.freezeFailed:
			why = "it could not be frozen"
		case now >= m.frozenAt+s.cfg.MaxFrozen && m != s.current:
			why, m.overdue = "it was frozen for as long as is allowed", true
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

// freeze gives the next to be frozen of all but one.
func (s *Scheduler) freeze(in []*member, but *member, now time.Duration, why string) (Action, bool) {
	for _, m := range in {
		if m != but && !m.frozen {
			return Action{Kind: Freeze, Lease: m.Lease, Until: now + s.cfg.MaxFrozen, Reason: why}, true
		}
	}
	return Action{}, false
}

// beginSlice gives a slice to a lease. The slice counts from when it is seen thawed.
func (s *Scheduler) beginSlice(m *member, now, q time.Duration) {
	s.phase, s.current, s.started, s.start, s.until, s.lastPicked = sliceRuns, m, false, now, now+q, m.Lease
}

// extendSlice lets a slice go on when the next one would be the same lease's again: a freeze for nobody costs a drain, and a
// drain that is cut short by a thaw is learned too small.
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

// chargeSlice ends the slice: all the time since its start is the lease's, its drain included.
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

// quantum is the shortest slice worth a switch.
func (s *Scheduler) quantum() time.Duration {
	return min(max(s.cfg.MinQuantum, 40*s.switchTime), s.cfg.MaxFrozen/8)
}

// waitLimit moves a time forward so that nobody but one stays frozen too long: room is left for the drain and the switch.
func (s *Scheduler) waitLimit(in []*member, but *member, t time.Duration) time.Duration {
	room := 2*s.switchTime + 5*time.Millisecond
	if but != nil && !but.frozen {
		room += but.backlog.estimate
	}
	for _, m := range in {
		if m != but && m.frozen {
			t = min(t, m.frozenAt+s.cfg.MaxFrozen-room)
		}
	}
	return t
}

// thawDeadline moves a time forward to the first moment when a lease was frozen for as long as is allowed.
func (s *Scheduler) thawDeadline(in []*member, t time.Duration) time.Duration {
	for _, m := range in {
		if m.frozen {
			t = min(t, m.frozenAt+s.cfg.MaxFrozen)
		}
	}
	return t
}

// pickNext visits the leases in turn, gives each its part of a round, and takes the first that has saved enough for a slice.
// Without one, all are at their caps, and it says when the first is not.
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
		// The clamp keeps a lease from saving up for a long slice, but below the second term one with a deep queue and a
		// small share would never run.
		m.deficit = min(m.deficit+part, max(2*part, m.backlog.estimate+part+q))
	}
	if m := s.urgent(in, now, q); m != nil {
		if total > 0 {
			credit(m) // its visit, only early
		}
		return m, max(q, min(m.deficit-m.backlog.estimate, r)), 0
	}
	if total == 0 {
		return nil, 0, at
	}
	// A lease with debt takes several visits to pay it back. The bound only guards against a defect.
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

// urgent is the frozen lease whose longest frozen time ends before another slice could.
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

// capWait is how long until a lease's cap lets it have a slice: once a round, because many short slices would each be
// wrong by what the reserve is.
func (s *Scheduler) capWait(m *member, n int, q time.Duration) time.Duration {
	lack := max(q+m.backlog.estimate, time.Duration(0.9*m.cap*float64(s.round(n)))) - m.budget
	if m.cap == 0 || lack <= 0 {
		return 0
	}
	return max(time.Millisecond, time.Duration(float64(lack)/m.cap))
}
