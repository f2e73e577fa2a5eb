package quota

import (
	"math"
	"time"
)

// lowLatencyUse is what is known of the use of a lease with low latency.
type lowLatencyUse struct {
	over        bool // it uses more than its share, or starves: it has slices as any other lease
	starves     bool // it got nearly nothing next to the slices
	trials      int
	tryAt       time.Duration // its next trial; if it starves, the end of that
	answers     []answer      // of the last minute half, oldest first
	unaccounted time.Duration
}

// answer is what the driver's samples of processes said of a lease.
type answer struct {
	from, to time.Duration
	used     time.Duration
}

const (
	answersKept = 30 * time.Second
	// shareWindow is the time over which a lease next to the slices has at most its share.
	shareWindow = 10 * time.Second
	// useWindow is the time over which it is seen which leases have work.
	useWindow = 5 * time.Second
	// leastOwnIdle is the idle part of its own slices that shows that a lease uses less than its share again, over fewestOwn periods.
	leastOwnIdle = 0.2
	fewestOwn    = 3
	// surelyOver and longOver are the standard errors of the samples from which on a lease uses more than its share, in shareWindow and in
	// all answers: so many that a lease below its share is not frozen for the error.
	surelyOver, longOver = 2.5, 1.5
	// payOff is the time over which what a lease used next to the slices is accounted: the driver's next answer is a second later.
	payOff = time.Second
)

// lowLatency reports whether a lease runs next to the slices of others while it uses less than its share.
func (s *Scheduler) lowLatency(m *member) bool {
	return m.LowLatency && len(s.tracks) == 1 && m.Cap == nil
}

// isLight reports whether it does so now.
func (s *Scheduler) isLight(m *member) bool {
	return s.lowLatency(m) && !m.low.over && s.present(m)
}

// window sums up the answers of a window that ends with the last one: what was used, and of which time.
func (u *lowLatencyUse) window(window time.Duration) (used, length time.Duration) {
	for i := len(u.answers) - 1; i >= 0; i-- {
		a := &u.answers[i]
		if length+(a.to-a.from)/2 > window {
			break
		}
		used += a.used
		length += a.to - a.from
	}
	return used, length
}

// useOver is the part of the time that a lease used.
func (u *lowLatencyUse) useOver(window time.Duration) float64 {
	used, length := u.window(window)
	return float64(used) / float64(max(length, 1))
}

// sampleError is the standard error of the use over a time, for a part of it: each sample names one process.
func (s *Scheduler) sampleError(part float64, length time.Duration) float64 {
	period := s.samplePeriod()
	if period == 0 {
		period = time.Second / 7
	}
	part = min(max(part, 0.02), 0.98)
	return math.Sqrt(part * (1 - part) * float64(length) * float64(period))
}

// learnLowLatency adds an answer of the driver to what is known about the leases with low latency: those that use more than their share
// have slices from then on, and those that use less run next to the slices again.
func (s *Scheduler) learnLowLatency(from, to time.Duration, busy map[string]float64) {
	for _, m := range s.members {
		if !s.lowLatency(m) {
			continue
		}
		u := &m.low
		used := time.Duration(min(busy[m.Lease], 1) * float64(to-from))
		u.answers = append(u.answers, answer{from, to, used})
		for len(u.answers) > 1 && u.answers[1].from <= to-answersKept {
			u.answers = u.answers[1:]
		}
		switch {
		case s.isLight(m):
			u.unaccounted += used
			if s.usesMore(m) && !s.withoutOthers() {
				u.over, m.deficit, s.stale = true, 0, true
				m.own.n, m.own.unused = 0, 0
			}
		case u.over && s.usesLess(m):
			s.becomeLight(m)
		}
	}
	s.refresh()
	s.tryLowLatency()
	s.refresh()
	s.planClearing()
}

// usesMore reports whether a lease used more than its share: clearly in shareWindow, or a little for longer.
func (s *Scheduler) usesMore(m *member) bool {
	more := func(window time.Duration, errors float64) bool {
		used, length := m.low.window(window)
		return length > window*9/10 && float64(used) > m.weight*float64(length)+errors*s.sampleError(m.weight, length)
	}
	if s.slow() {
		return more(answersKept, surelyOver) // shareWindow has ten samples
	}
	return more(shareWindow, surelyOver) || more(answersKept, longOver)
}

// usesLess reports whether a lease with slices uses less than its share again, or there is no reason for its slices any more.
func (s *Scheduler) usesLess(m *member) bool {
	if m.low.starves {
		return s.last >= m.low.tryAt || s.withoutOthers()
	}
	return m.own.idle || m.own.n >= fewestOwn && m.own.mean() >= leastOwnIdle || s.withoutOthers()
}

// withoutOthers reports whether at most one lease has work, with slices or next to them.
func (s *Scheduler) withoutOthers() bool { return len(s.in)+len(s.free)+len(s.light) < 2 }

// becomeLight lets a lease run next to the slices.
func (s *Scheduler) becomeLight(m *member) {
	m.low = lowLatencyUse{tryAt: s.last + firstTrial}
	s.stale = true
}

// part is what a lease next to the slices gets if it always has work.
func (s *Scheduler) part(m *member) float64 {
	n := 1
	if len(s.in) > 0 {
		n++
	}
	for _, x := range s.light {
		if x != m && x.low.useOver(useWindow) >= 0.15 {
			n++
		}
	}
	for _, x := range s.free {
		if x != m && s.useOver(x, useWindow) >= 0.15 {
			n++
		}
	}
	return 1 / float64(n)
}

// lightUse is the part of the time that leases next to the slices use.
func (s *Scheduler) lightUse() float64 {
	var sum float64
	for _, m := range s.light {
		sum += m.low.useOver(useWindow)
	}
	return min(sum, 0.5)
}
