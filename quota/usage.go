package quota

import "time"

// Usage is the part of a GPU's time that one lease got.
type Usage struct {
	Lease string
	// Occupancy is the time that is accounted to this lease: its slices with the backlog after them, all the time while it
	// runs alone, and equal parts while several run concurrently. It is not how busy the lease kept the GPU. The time in which
	// the GPU was idle after a slice is accounted to no lease. The backlog is accounted when its samples are known, within
	// about two seconds.
	Occupancy time.Duration
	// Recent is the part of the last Window that is accounted to this lease.
	Recent float64
	Window time.Duration // 10 s, or less after the start
	// Entitled is its part among the participants, 0…1; 0 when it does not participate.
	Entitled    float64
	Since       time.Duration // when it came
	Frozen      time.Duration // in total
	LastMinute  Freezes
	Slices      uint64
	Backlog     time.Duration // estimated: how long its queued work continues to run after a freeze
	OwnIdle     float64       // the part of its slices in which it leaves the GPU idle, 0…1
	Idle        bool          // it has the GPU open and does nothing: it is not frozen, and other leases do not wait for it
	Unfreezable bool          // freezing it failed: it runs until the next attempt
}

// recentWindow is the window of Usage.Recent.
const recentWindow = 10 * time.Second

// bucket is the length of an element of usage.buckets.
const bucket = 250 * time.Millisecond

// usage is the time that is accounted to a lease.
type usage struct {
	occupancy time.Duration
	frozen    time.Duration
	past      []pastFreeze // of the last minute, oldest first
	slices    uint64
	pending   time.Duration // of the backlog that runs, without the series
	debts     []debt
	buckets   [64]float32 // parts of a bucket, by time
	newest    int64       // number of the newest bucket
}

// debt is time of this lease in which another one's backlog ran.
type debt struct {
	to   *member
	time time.Duration
}

// owe accounts the next time of this lease to another one.
func (u *usage) owe(to *member, d time.Duration) {
	if d > 0 && len(u.debts) < 16 {
		u.debts = append(u.debts, debt{to, d})
	}
}

// pay accounts time, first to the leases whose backlog ran in it.
func (u *usage) pay(from, to time.Duration, part float64) {
	d := time.Duration(part * float64(to-from))
	own := d
	for own > 0 && len(u.debts) != 0 {
		first := &u.debts[0]
		x := min(first.time, own)
		first.to.usage.addAt(from, to, x)
		own -= x
		if first.time -= x; first.time == 0 {
			u.debts = append(u.debts[:0], u.debts[1:]...)
		}
	}
	u.addAt(from, to, own)
}

// addAt accounts d of the time between two moments.
func (u *usage) addAt(from, to, d time.Duration) {
	if d <= 0 || to <= from {
		return
	}
	u.occupancy += d
	part := float64(d) / float64(to-from)
	last := int64((to - 1) / bucket)
	for u.newest < last {
		if u.newest < last-int64(len(u.buckets)) {
			u.newest = last - int64(len(u.buckets))
		}
		u.newest++
		u.buckets[u.newest%int64(len(u.buckets))] = 0
	}
	for n := max(int64(from/bucket), u.newest-int64(len(u.buckets))+1); n <= last; n++ {
		over := overlap(from, to, time.Duration(n)*bucket, time.Duration(n+1)*bucket)
		u.buckets[n%int64(len(u.buckets))] += float32(part * float64(over) / float64(bucket))
	}
}

// recent is the accounted part of the window that ends now.
func (u *usage) recent(now, window time.Duration) float64 {
	var sum float64
	for n := int64((now - window) / bucket); n <= u.newest && n <= int64(now/bucket); n++ {
		if n <= u.newest-int64(len(u.buckets)) {
			continue
		}
		over := overlap(now-window, now, time.Duration(n)*bucket, time.Duration(n+1)*bucket)
		if now < time.Duration(n+1)*bucket {
			over = bucket // the bucket is not complete
		}
		sum += float64(u.buckets[n%int64(len(u.buckets))]) * float64(over)
	}
	return min(1, sum/float64(window))
}

// accountNextToSlices accounts time to the leases that run next to the slices, by the driver's answers, and returns what is left for the
// others: all together never have more than there was.
func (s *Scheduler) accountNextToSlices(from, to time.Duration) (left time.Duration) {
	left = to - from
	for _, m := range s.free {
		d := min(left, time.Duration(float64(m.demand.unaccounted)*min(1, float64(to-from)/float64(payOff))))
		m.demand.unaccounted -= d
		m.usage.addAt(from, to, d)
		left -= d
	}
	return left
}

// account accounts the time since the last call to the leases that had it.
func (s *Scheduler) account(now time.Duration) {
	if now <= s.last {
		return
	}
	from := s.last
	s.last = now
	s.probe()
	s.accountLimits(from, now)
	left := s.accountNextToSlices(from, now)
	s.paid += now - from - left
	rest := float64(left) / float64(now-from)
	switch {
	case s.phase == concurrent:
		for _, m := range s.in {
			n := 0
			for _, x := range s.in {
				if m.overlaps(&x.Member) {
					n++
				}
			}
			s.use(m, from, now, rest/float64(n))
		}
	case s.phase == sliceRuns, s.phase == sliceCloses:
		for _, m := range s.set {
			if !m.frozen && !s.runsFree(m) {
				s.use(m, from, now, rest)
			}
		}
	case s.phase == cleared:
		s.emptied += now - from
	case s.phase == backlogRuns:
		for _, m := range s.set {
			d := min(m.usage.pending, left)
			m.usage.pending -= d
			m.usage.addAt(from, now, d)
			m.budget -= d
		}
	}
	// After the time was accounted, because only what is left of the budget is subject to the limit.
	for _, m := range s.in {
		if m.cap != 0 {
			m.budget = min(m.budget+time.Duration(m.cap*float64(now-from)), s.burst(m))
		}
	}
}

// use accounts time to a lease.
func (s *Scheduler) use(m *member, from, to time.Duration, part float64) {
	m.usage.pay(from, to, part)
	m.budget -= time.Duration(part * float64(to-from))
}

// Usage accounts up to now and returns the usage of every lease.
func (s *Scheduler) Usage(now time.Duration) []Usage {
	s.account(now)
	s.refresh()
	now = s.last
	window := min(recentWindow, now)
	out := make([]Usage, 0, len(s.members))
	for _, m := range s.members {
		u := Usage{
			Lease:       m.Lease,
			Occupancy:   m.usage.occupancy,
			Since:       m.joined,
			Frozen:      m.usage.frozen,
			LastMinute:  m.freezes(now),
			Slices:      m.usage.slices,
			Window:      window,
			Backlog:     m.backlog.mean,
			OwnIdle:     m.own.mean(),
			Idle:        m.own.idle,
			Unfreezable: now < m.unfreezableUntil,
		}
		if m.frozen {
			u.Frozen += now - m.frozenAt
		}
		if window > 0 {
			u.Recent = m.usage.recent(now, window)
		}
		if s.present(m) {
			u.Entitled = m.weight
		}
		out = append(out, u)
	}
	return out
}

// Status is how the GPU is time-sliced now.
type Status struct {
	Enforced bool
	// Contended: several leases with work use the same GPU.
	Contended bool
	Current   string // the lease whose slice runs
	Reason    string // why the shares are not enforced
	// Exact is to how many points of ten seconds shares are exact, as a standard deviation; of a GPU whose leases keep it busy.
	Exact float64
	// SlowSampler: the driver samples the GPU every Period, which is too seldom to measure what runs after a freeze.
	SlowSampler bool
	Period      time.Duration // 0: it was not measured
	// IdleWhileWaiting is the time for which a GPU was idle while a lease that uses it was frozen, in total. It counts for no
	// lease. It is 0 without ObserveUtilization.
	IdleWhileWaiting time.Duration
}

// mixes reports whether leases share the GPU of which one runs next to the others. Their shares are enforced.
func (s *Scheduler) mixes() bool {
	return len(s.free) > 0 && len(s.in)+len(s.free) > 1 && !s.cfg.Concurrent && !s.fallsBack()
}

// Status returns the status as of the last Next.
func (s *Scheduler) Status() Status {
	out := Status{
		Enforced:    s.phase != concurrent || s.mixes(),
		Contended:   s.contended() || s.mixes(),
		Reason:      s.reason,
		Exact:       s.exact(),
		SlowSampler: s.slow(),
		Period:      s.samplePeriod(),
	}
	if len(s.set) != 0 {
		out.Current = s.set[0].Lease
	}
	for _, t := range s.tracks {
		out.IdleWhileWaiting += t.idle
	}
	return out
}
