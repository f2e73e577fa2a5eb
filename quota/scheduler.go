package quota

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Config is how one GPU, or one group of GPUs, is time-sliced. The zero value works.
type Config struct {
	// Round is the time in which every lease gets its share once. 0: 1 s; 2 s with more than four leases;
	// 250 ms for each of more than eight, and at most three fifths of MaxFrozen.
	Round time.Duration
	// Dither is the random part by which a slice is longer or shorter, 0…0.5. Without it the slices interfere with the driver's
	// sampling, and the estimates stay wrong by percentage points. 0: 0.15.
	Dither float64
	// MinQuantum is the shortest slice. 0: 30 ms. A slice is never shorter than 20 times the measured time of a switch.
	MinQuantum time.Duration
	// MaxFrozen is the longest time that a lease is frozen without a break, whatever its share. 0: 5 s.
	MaxFrozen time.Duration
	// Floor is the part of the time that all leases below the highest class with work have together, 0…1. 0: 0.05.
	Floor float64
	// Concurrent lets all leases run concurrently and only accounts.
	Concurrent bool
	// Fallback lets all leases run concurrently for a while when they do not use their slices: exclusive slices of leases
	// that wait for the host waste the GPU. It needs ObserveUtilization.
	Fallback bool
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
}

// Scheduler shares the time of one GPU, or of a group of GPUs that leases connect, by deficit round robin that charges the
// backlog: the queued work of a frozen lease continues to run, so a slice is charged from the thaw until that work is done,
// and time beyond the share is charged to the lease's next slices. How long the work runs is learned from the idle time of
// the GPU (ObserveUtilization). The zero value is not usable: call NewScheduler. It is not safe for concurrent use.
//
// Times are monotonic and start at any fixed moment.
type Scheduler struct {
	cfg        Config
	members    []*member // sorted by lease
	in         []*member // those that get slices, sorted by lease; valid unless stale
	free       []*member // those that run next to the slices, sorted by lease; valid unless stale
	stale      bool
	recheck    time.Duration // when a lease that cannot be frozen is tried again; 0: none is waiting for that
	phase      phase
	set        []*member     // the leases of this slice: the first was picked, the others use other GPUs
	disturbed  time.Duration // until then, the queued work of leases runs that were frozen without a slice
	leftover   time.Duration // how long the backlog before this slice may have run into it
	start      time.Duration
	until      time.Duration
	lastPicked string
	preempting *member       // a lease of a higher class has work and does not wait for the end of the slice
	joined     time.Duration // when the last lease joined
	tried      time.Duration // when the last trial ended
	last       time.Duration // accounted up to this time
	paid       time.Duration // accounted to leases that run next to the slices, in total
	emptied    time.Duration // for which those that have slices were frozen for those next to them, in total
	switchTime time.Duration // duration of a freeze or a thaw, smoothed
	lag        time.Duration // from the end of a wait to the end of the thaw after it, smoothed
	fallback   fallback
	clearing   clearing
	left       Payers // what those owe whose leases have ended
	sensors    sensors
	gpuBusy    busyLog
	tracks     []*track
	freezes    []*freeze // not yet evaluated, oldest first
	reason     string
	entered    func(from, to phase) // for tests
	changed    func(from, to class) // the same
}

// member is a lease with the scheduler's state of it.
type member struct {
	Member
	joined   time.Duration
	weight   float64 // its part of the time among the participants, 0…1
	due      float64 // next to the slices: the same, and what the others leave
	deficit  time.Duration
	saved    time.Duration // deficit before a slice that may be extended
	budget   time.Duration // what is left of its cap
	cap      float64       // its part of its grant's cap; 0: none
	removed  bool
	comes    bool          // it goes on with what another lease owed, and was not frozen yet: until then it runs next to the slices
	running  bool          // in the set
	wait     time.Duration // in the set: after its slice
	measures bool          // that wait measures its backlog
	tracks   []*track

	incoming         time.Duration // of an earlier backlog that ran in its last slice
	frozen           bool
	frozenAt         time.Duration
	deadline         time.Duration // its thaw deadline as stored
	freezeFailed     bool          // its state is unknown until it is thawed
	overdue          bool          // thawed early, because it was frozen for MaxFrozen
	retryAt          time.Duration // no action on it before this
	failures         int
	unfreezableUntil time.Duration // freezing it failed repeatedly: it is not frozen before this

	backlog backlog
	own     ownIdle
	demand  demand
	usage   usage
	windows windows
}

// NewScheduler returns a scheduler without leases.
func NewScheduler(cfg Config) *Scheduler {
	s := &Scheduler{}
	s.Configure(cfg)
	return s
}

// Configure changes the settings from the next slice on.
func (s *Scheduler) Configure(cfg Config) {
	cfg.Dither = cmp.Or(cfg.Dither, 0.15)
	cfg.MinQuantum = cmp.Or(cfg.MinQuantum, 30*time.Millisecond)
	cfg.MaxFrozen = cmp.Or(cfg.MaxFrozen, 5*time.Second)
	cfg.Floor = cmp.Or(cfg.Floor, 0.05)
	s.cfg, s.stale = cfg, true
}

// SetMembers sets the leases. A new one goes on with what its payer owes, without credit; one that was inactive keeps only what is left of
// its debt. A frozen one that is missing from the list is thawed before it is removed.
func (s *Scheduler) SetMembers(now time.Duration, list []Member) {
	s.account(now)
	changed := false
	for _, m := range s.members {
		if !slices.ContainsFunc(list, func(x Member) bool { return x.Lease == m.Lease }) && !m.removed {
			m.removed, m.Active, changed = true, false, true
		}
	}
	for _, x := range list {
		i, ok := slices.BinarySearchFunc(s.members, x.Lease, func(a *member, lease string) int { return cmp.Compare(a.Lease, lease) })
		if !ok {
			s.members = slices.Insert(s.members, i, s.joins(x))
			s.joined = s.last
			changed = true
			continue
		}
		m := s.members[i]
		changed = changed || m.Active != x.Active || m.removed
		wakes := x.Active && !m.Active || m.removed
		m.Member, m.removed = x, false
		if wakes {
			s.wakeUp(m)
		}
	}
	s.forget()
	s.connect()
	s.stale = true
	s.refresh()
	if changed {
		s.fallback.reset()
	}
}

// FrozenLeases returns the leases that are frozen, also those that SetMembers has removed and that are not thawed yet.
func (s *Scheduler) FrozenLeases() []string {
	var out []string
	for _, m := range s.members {
		if m.frozen {
			out = append(out, m.Lease)
		}
	}
	return out
}

// wakeUp lets a lease have slices again. It has no credit; its debt has been reduced by the share that it did not use.
func (s *Scheduler) wakeUp(m *member) {
	if m.own.idle {
		m.deficit += time.Duration(m.weight * float64(s.last-m.own.since))
	}
	m.deficit = min(m.deficit, 0)
	slept := time.Duration(0)
	if m.own.idle {
		slept = s.last - m.own.since
	}
	m.own.idle, m.own.unused, m.own.since = false, 0, s.last
	s.stale = true
	if slept >= restsAfter { // It did not only seem to do nothing.
		s.wakes(m)
	}
}

// forget drops the removed members that are thawed.
func (s *Scheduler) forget() {
	s.members = slices.DeleteFunc(s.members, func(m *member) bool {
		if !m.removed || m.frozen {
			return false
		}
		s.leave(m)
		s.freezes = slices.DeleteFunc(s.freezes, func(f *freeze) bool { return f.lease == m })
		if m.running {
			s.endSet()
			s.enter(concurrent)
		}
		s.stale = true
		return true
	})
}

// connect gives every GPU of the group its track, and every lease the tracks of its GPUs.
func (s *Scheduler) connect() {
	var tracks []*track
	add := func(id gpu.UUID) {
		if slices.ContainsFunc(tracks, func(t *track) bool { return t.id == id }) {
			return
		}
		i := slices.IndexFunc(s.tracks, func(t *track) bool { return t.id == id })
		if i < 0 {
			tracks = append(tracks, &track{id: id})
			return
		}
		tracks = append(tracks, s.tracks[i])
	}
	for _, m := range s.members {
		for _, id := range m.GPUs {
			add(id)
		}
	}
	if len(tracks) == 0 {
		add("")
	}
	s.tracks = tracks
	for _, m := range s.members {
		m.tracks = m.tracks[:0]
		for _, t := range tracks {
			if len(m.GPUs) == 0 || slices.Contains(m.GPUs, t.id) {
				m.tracks = append(m.tracks, t)
			}
		}
	}
}

// participates reports whether a lease gets slices.
func (s *Scheduler) participates(m *member) bool {
	return s.present(m) && !s.mayRunFree(m)
}

// present reports whether a lease has a part of the time.
func (s *Scheduler) present(m *member) bool {
	return m.Active && !m.NeverFreeze && !m.Held && !m.own.idle && !m.removed && s.last >= m.unfreezableUntil
}

// refresh computes which leases get slices and the weights, when that may have changed.
func (s *Scheduler) refresh() {
	if s.recheck != 0 && s.last >= s.recheck {
		s.stale = true
	}
	if !s.stale {
		return
	}
	s.stale, s.recheck = false, 0
	was := s.in
	s.in, s.free = nil, nil
	for _, m := range s.members {
		if s.runsFree(m) {
			s.free = append(s.free, m)
		}
		if s.participates(m) {
			s.in = append(s.in, m)
		}
		if m.unfreezableUntil > s.last && (s.recheck == 0 || m.unfreezableUntil < s.recheck) {
			s.recheck = m.unfreezableUntil
		}
	}
	s.weigh()
	s.limitCredits()
	for _, m := range s.in {
		if s.begun() && !m.running && len(s.set) != 0 && m.Priority > s.set[0].Priority && !slices.Contains(was, m) {
			s.preempting = m
		}
	}
	if s.preempting != nil && !slices.Contains(s.in, s.preempting) {
		s.preempting = nil
	}
	s.log()
}

// weigh divides the time between the classes, and that of a class by the shares of its grants. The leases of a grant divide
// its share and its cap.
func (s *Scheduler) weigh() {
	list := slices.Concat(s.in, s.free)
	if len(list) == 0 {
		return
	}
	top := list[0].Priority
	for _, m := range list {
		top = max(top, m.Priority)
	}
	var upper, lower float64
	for _, m := range list {
		k := 0
		for _, x := range list {
			if x.Grant == m.Grant {
				k++
			}
		}
		m.weight, m.cap = max(m.Share, 1e-6)/float64(k), 0
		if m.Cap != nil && *m.Cap < 1 {
			m.cap = max(*m.Cap, 0.001) / float64(k)
		}
		if m.Priority == top {
			upper += m.weight
		} else {
			lower += m.weight
		}
	}
	for _, m := range list {
		switch {
		case lower == 0:
			m.weight /= upper
		case m.Priority == top:
			m.weight *= (1 - s.cfg.Floor) / upper
		default:
			m.weight *= s.cfg.Floor / lower
		}
	}
	s.keepWhole(list)
	for _, m := range list {
		m.due = m.weight
	}
	s.shareOut()
}

// keepWhole gives leases with low latency at least the part of the whole time that their shares are. The others divide the rest.
func (s *Scheduler) keepWhole(list []*member) {
	var kept, rest float64
	for _, m := range list {
		if !s.lowLatency(m) {
			rest += m.weight
			continue
		}
		k := 0
		for _, x := range list {
			if x.Grant == m.Grant {
				k++
			}
		}
		m.weight = max(m.weight, m.Share/100/float64(k))
		kept += m.weight
	}
	for _, m := range list {
		if kept > 0 && rest > 0 && !s.lowLatency(m) {
			m.weight *= max(1-kept, s.cfg.Floor) / rest
		}
	}
}

// Froze reports a freeze to the scheduler: when it was done, its duration, and whether it failed. After a failure the lease
// is thawed, and after three failures in a row it is not frozen for unfreezablePause. The other leases then get less than their
// share, but they are not blocked.
func (s *Scheduler) Froze(lease string, now, duration time.Duration, err error) {
	s.account(now)
	m := s.find(lease)
	if m == nil || m.frozen {
		return
	}
	m.frozen, m.frozenAt = true, s.last
	if m.comes && !m.running {
		m.deficit -= s.last - m.joined + outsideBacklog
	}
	m.comes = false
	if err != nil {
		m.freezeFailed = true
		if m.failures++; m.failures >= 3 {
			m.failures, m.unfreezableUntil, s.stale = 0, s.last+unfreezablePause, true
		}
	} else {
		m.failures = 0
		// A lease that takes long to freeze, whose time that is, does not make the slices of all longer.
		s.switchTime += (min(duration, longestSwitch) - s.switchTime) / 8
	}
	s.log()
}

// unfreezablePause is the time for which a lease that cannot be frozen is not frozen.
const unfreezablePause = time.Minute

// longestSwitch is the longest freeze that counts as the time of a switch.
const longestSwitch = 2 * time.Millisecond

// Thawed reports a thaw to the scheduler, requested or not, and whether it failed. A lease that no longer exists counts as
// thawed.
func (s *Scheduler) Thawed(lease string, now, duration time.Duration, err error) {
	s.account(now)
	m := s.find(lease)
	if m == nil || !m.frozen {
		return
	}
	if err != nil {
		m.retryAt = s.last + 50*time.Millisecond
		return
	}
	m.usage.noteFrozen(m.frozenAt, s.last)
	m.frozen, m.freezeFailed = false, false
	s.switchTime += (duration - s.switchTime) / 8
	if !s.runsFree(m) {
		s.endFreezes(m)
	}
	if m.overdue {
		// Its slice begins: the leases that had the slice are frozen next.
		m.overdue = false
		if s.phase == sliceRuns {
			for _, x := range s.set {
				x.deficit -= x.own.charge(s.last - s.start)
			}
		}
		if !m.running && s.participates(m) {
			s.beginSlice(m, s.last, s.quantum())
		}
	}
	s.log()
	s.forget()
}

func (s *Scheduler) find(lease string) *member {
	i, ok := slices.BinarySearchFunc(s.members, lease, func(a *member, lease string) int { return cmp.Compare(a.Lease, lease) })
	if !ok {
		return nil
	}
	return s.members[i]
}
