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
	// Ungated: it must never be frozen (a login, an adopted unit). It runs whenever it likes and is not accounted.
	Ungated bool
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
	// Look (with a thaw): now is the time to read the driver's samples and Observe them, because what they tell of this
	// lease's freeze is lost soon after the thaw. It need not be waited for, and may be left out.
	Look bool
}

// Scheduler shares the time of one GPU by deficit round robin in which the drain is charged: a frozen lease's queued
// work still runs, so a slice lasts from the thaw until that work is done, and what it lasted longer than granted is
// paid back. The zero value is not usable: call NewScheduler. It is not safe for concurrent use.
//
// Times are monotonic, since any fixed moment of the caller's.
type Scheduler struct {
	cfg     Config
	members []*member // sorted by lease
	phase   phase
	cur     *member // whose slice it is, in phases run and drain
	started bool    // cur was seen thawed in this slice
	start   time.Duration
	until   time.Duration
	turn    string
	last    time.Duration // accounted up to here
	gate    time.Duration // what a freeze or a thaw takes, smoothed
	fill    fill
	period  period
	reason  string
}

// phase is what the GPU is doing.
type phase int

const (
	open  phase = iota // nobody is gated
	run                // cur runs, the others are frozen
	drain              // all are frozen, cur's queued work runs out
	idle               // all are frozen, because all are at their caps
)

// member is a lease with what the scheduler knows of it.
type member struct {
	Member
	weight  float64 // its part of its grant's share, among the active
	deficit time.Duration
	budget  time.Duration // what is left of its cap
	cap     float64       // its part of its grant's cap; 0: none
	gone    bool

	frozen   bool
	frozenAt time.Duration
	suspect  bool          // a freeze failed: its state is unknown until it is thawed
	overdue  bool          // thawed out of turn, because it was frozen for too long
	retryAt  time.Duration // no action on it before this
	failures int
	broken   time.Duration // it cannot be frozen: left alone until this

	drain  drainEstimate
	usage  Usage
	spans  []span
	busyAt time.Duration // the newest sample that names it
	parked bool          // it holds the GPU but does nothing
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
		if m.Active && !old.Active || old.gone {
			old.deficit, old.parked, old.busyAt = 0, false, now
			changed = true
		}
		old.Member, old.gone = m, false
	}
	for _, m := range s.members {
		if !seen[m.Lease] && !m.gone {
			m.gone, m.Active, changed = true, false, true
		}
	}
	s.forget()
	s.weigh()
	if changed {
		s.fill.reset(now)
	}
}

// forget drops the members that are gone and thawed.
func (s *Scheduler) forget() {
	s.members = slices.DeleteFunc(s.members, func(m *member) bool { return m.gone && !m.frozen })
	if s.cur != nil && !slices.Contains(s.members, s.cur) {
		s.cur, s.phase = nil, open
	}
}

// weigh divides every grant's share and cap among its leases that run.
func (s *Scheduler) weigh() {
	n := map[string]int{}
	for _, m := range s.members {
		if s.contends(m) {
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

// contends tells whether a lease takes part in the round.
func (s *Scheduler) contends(m *member) bool {
	return m.Active && !m.Ungated && !m.parked && !m.gone && s.last >= m.broken
}

func (s *Scheduler) contenders() []*member {
	var out []*member
	for _, m := range s.members {
		if s.contends(m) {
			out = append(out, m)
		}
	}
	return out
}

// Froze reports a freeze: when it was done, how long it took, and whether it failed. After a failure the lease is
// thawed, and after three in a row left alone for a minute: an unfreezable lease costs the others their share, not
// their life.
func (s *Scheduler) Froze(lease string, now, took time.Duration, err error) {
	s.account(now)
	m := s.find(lease)
	if m == nil || m.frozen {
		return
	}
	m.frozen, m.frozenAt = true, now
	if err != nil {
		m.suspect = true
		if m.failures++; m.failures >= 3 {
			m.failures, m.broken = 0, now+time.Minute
			s.weigh()
		}
		return
	}
	m.failures = 0
	s.gate += (took - s.gate) / 8
	m.drain.froze(now)
}

// Thawed reports a thaw, asked for or not, and whether it failed. A lease that no longer exists counts as thawed.
func (s *Scheduler) Thawed(lease string, now, took time.Duration, err error) {
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
	m.frozen, m.suspect = false, false
	m.drain.thawed(now)
	s.gate += (took - s.gate) / 8
	if m.overdue {
		// It takes the slice over: the one that had it is frozen next.
		m.overdue = false
		if s.cur != nil && s.cur != m {
			s.charge(now)
		}
		s.begin(m, now, s.quantum())
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
	if s.fill.over(now) {
		for _, m := range s.members {
			m.drain.halve()
		}
	}
	s.weigh()
	in := s.contenders()
	gated, why := s.gated(in)
	s.reason = why
	if a, ok := s.release(now, gated); ok {
		return a
	}
	if !gated {
		s.phase, s.cur = open, nil
		until := now + time.Second
		for _, m := range s.members {
			m.deficit = 0 // a debt to nobody
			if m.frozen {
				until = min(until, m.retryAt)
			}
		}
		return Action{Kind: Wait, Until: until, Reason: why}
	}
	if s.cur != nil && !slices.Contains(in, s.cur) {
		s.cur, s.phase = nil, open
	}
	for {
		switch s.phase {
		case open, idle:
			m, q, at := s.pick(in, now)
			if m == nil {
				s.phase, s.cur = idle, nil
				if a, ok := s.freeze(in, nil, now, "its cap is reached"); ok {
					return a
				}
				return Action{Kind: Wait, Until: s.clip(in, nil, at), Reason: "all leases are at their caps"}
			}
			s.begin(m, now, q)
		case run:
			if a, ok := s.freeze(in, s.cur, now, "it is another's slice"); ok {
				return a
			}
			if s.cur.frozen && now < s.cur.retryAt {
				return Action{Kind: Wait, Until: s.cur.retryAt, Reason: "a thaw failed and is tried again"}
			}
			if s.cur.frozen {
				return Action{Kind: Thaw, Lease: s.cur.Lease, Reason: "its slice begins", Look: true}
			}
			if !s.started {
				s.started, s.until, s.start = true, now+(s.until-s.start), now
				s.cur.usage.Slices++
			}
			// A slice is never cut to nothing, even when others are due: who is due is thawed beside it.
			if end := max(s.clip(in, s.cur, s.until), min(s.until, s.start+s.quantum())); now < end {
				return Action{Kind: Wait, Until: s.due(in, end), Reason: "a slice runs"}
			}
			if s.extend(in, now) {
				continue
			}
			s.phase = drain
		case drain:
			if a, ok := s.freeze(in, nil, now, "its slice ends"); ok {
				return a
			}
			if end := s.clip(in, s.cur, s.cur.frozenAt+s.cur.drain.reserve); now < end {
				return Action{Kind: Wait, Until: end, Reason: "queued work runs out"}
			}
			s.charge(now)
			s.phase = open
		}
	}
}

// gated tells whether anybody is frozen for anybody, and if not, why.
func (s *Scheduler) gated(in []*member) (bool, string) {
	switch {
	case len(in) == 0:
		return false, "nobody uses the GPU"
	case s.cfg.Concurrent:
		return false, "all run side by side: so it is configured"
	case s.last < s.fill.until:
		return false, s.fill.why
	case len(in) == 1 && in[0].cap == 0:
		return false, "one lease alone is never frozen"
	}
	var need time.Duration
	for _, m := range in {
		need += s.quantum() + m.drain.reserve + 2*s.gate
	}
	if need > s.cfg.MaxFrozen+s.shortest(in) {
		s.fill.fall(s.last, "all run side by side: slices and queued work of all leases take longer than a lease may be frozen")
		return false, s.fill.why
	}
	return true, ""
}

// shortest is the least slice and drain among some: a lease does not wait for its own.
func (s *Scheduler) shortest(in []*member) time.Duration {
	least := in[0].drain.reserve
	for _, m := range in {
		least = min(least, m.drain.reserve)
	}
	return least + s.quantum()
}

// release thaws whom nothing may keep frozen: all when nobody is gated, those who do not contend, and those who were
// frozen for as long as is allowed.
func (s *Scheduler) release(now time.Duration, gated bool) (Action, bool) {
	for _, m := range s.members {
		if !m.frozen {
			continue
		}
		why := ""
		switch {
		case !gated || !s.contends(m):
			why = "it has nobody to wait for"
		case m.suspect:
			why = "it could not be frozen"
		case now >= m.frozenAt+s.cfg.MaxFrozen && m != s.cur:
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

// begin gives a slice to a lease. The slice counts from when it is seen thawed.
func (s *Scheduler) begin(m *member, now, q time.Duration) {
	s.phase, s.cur, s.started, s.start, s.until, s.turn = run, m, false, now, now+q, m.Lease
}

// extend lets a slice go on when the next one would be the same lease's again: a freeze for nobody costs a drain, and a
// drain that is cut short by a thaw is learned too small.
func (s *Scheduler) extend(in []*member, now time.Duration) bool {
	saved := make([]time.Duration, len(in))
	for i, m := range in {
		saved[i] = m.deficit
	}
	s.cur.deficit -= now - s.start + s.cur.drain.reserve
	if m, q, _ := s.pick(in, now); m == s.cur {
		s.cur.deficit += s.cur.drain.reserve // not spent yet
		s.start, s.until = now, now+q
		return true
	}
	for i, m := range in {
		m.deficit = saved[i]
	}
	return false
}

// charge ends the slice: all the time since its start is the lease's, its drain included.
func (s *Scheduler) charge(now time.Duration) {
	if s.cur != nil && s.started {
		s.cur.deficit -= now - s.start
		s.cur.drain.shared(now)
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
	return min(max(s.cfg.MinQuantum, 40*s.gate), s.cfg.MaxFrozen/8)
}

// clip moves a time forward so that nobody but one stays frozen too long: room is left for the drain and the switch.
func (s *Scheduler) clip(in []*member, but *member, t time.Duration) time.Duration {
	room := 2*s.gate + 5*time.Millisecond
	if but != nil && !but.frozen {
		room += but.drain.reserve
	}
	for _, m := range in {
		if m != but && m.frozen {
			t = min(t, m.frozenAt+s.cfg.MaxFrozen-room)
		}
	}
	return t
}

// due moves a time forward to the first moment when a lease was frozen for as long as is allowed.
func (s *Scheduler) due(in []*member, t time.Duration) time.Duration {
	for _, m := range in {
		if m.frozen {
			t = min(t, m.frozenAt+s.cfg.MaxFrozen)
		}
	}
	return t
}

// pick visits the leases in turn, gives each its part of a round, and takes the first that has saved enough for a slice.
// Without one, all are at their caps, and it says when the first is not.
func (s *Scheduler) pick(in []*member, now time.Duration) (*member, time.Duration, time.Duration) {
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
	first := slices.IndexFunc(in, func(m *member) bool { return m.Lease > s.turn })
	credit := func(m *member) {
		part := time.Duration(m.weight / total * float64(r))
		// The clamp keeps a lease from saving up for a long slice, but below the second term one with a deep queue and a
		// small share would never run.
		m.deficit = min(m.deficit+part, max(2*part, m.drain.reserve+part+q))
	}
	if m := s.urgent(in, now, q); m != nil {
		if total > 0 {
			credit(m) // its visit, only early
		}
		return m, max(q, min(m.deficit-m.drain.reserve, r)), 0
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
		slice := m.deficit - m.drain.reserve
		if m.cap != 0 {
			slice = min(slice, m.budget-m.drain.reserve)
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
			longest = max(longest, m.drain.reserve)
		}
	}
	if out == nil || now+q+longest+4*s.gate+10*time.Millisecond < out.frozenAt+s.cfg.MaxFrozen {
		return nil
	}
	return out
}

// capWait is how long until a lease's cap lets it have a slice: once a round, because many short slices would each be
// wrong by what the reserve is.
func (s *Scheduler) capWait(m *member, n int, q time.Duration) time.Duration {
	lack := max(q+m.drain.reserve, time.Duration(0.9*m.cap*float64(s.round(n)))) - m.budget
	if m.cap == 0 || lack <= 0 {
		return 0
	}
	return max(time.Millisecond, time.Duration(float64(lack)/m.cap))
}
