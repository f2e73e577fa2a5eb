package quota

import "time"

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
	// starvedUse is the part of a trial for which a lease keeps the GPU busy if it starves: it gets hardly any time next to the others, and
	// has slices for a while.
	starvedUse, hardlyAny = 0.8, 0.2
	// firstTrial is the time to the first trial of a lease with low latency.
	firstTrial = 10 * time.Second
)

// lowLatency reports whether a lease runs next to the slices of others while it uses less than its share, whatever it uses alone.
func (s *Scheduler) lowLatency(m *member) bool {
	return m.LowLatency && len(s.tracks) == 1 && m.Cap == nil
}

// classifyLowLatency changes the class of a lease with low latency: it has slices while it uses more than its share.
func (s *Scheduler) classifyLowLatency(m *member) {
	d := &m.demand
	switch {
	case d.class == limited: // before it had low latency
		s.change(m, light)
	case d.class == heavy && s.usesLess(m):
		s.change(m, light)
		d.starves, d.retry, d.pause = false, s.last+firstTrial, 0
	case d.class != light:
	case s.usesMore(m) && !s.withoutOthers():
		s.change(m, heavy)
	case s.lacks(m) && d.alone >= starvedUse && s.hasSeries() && s.useOver(m, shareWindow) < hardlyAny:
		s.change(m, heavy)
		d.starves, d.retry = true, s.last+longestPause
	case s.lacks(m):
		s.shorten(m)
	case s.last >= d.retry && s.tries() && len(s.in) > 0 && !d.short && s.clearing.part == 0 && s.mayLack(m):
		s.change(m, measured)
		d.long = true
	}
}

// usesMore reports whether a lease used more than its share: clearly in shareWindow, or a little for longer.
func (s *Scheduler) usesMore(m *member) bool {
	more := func(window time.Duration, errors float64) bool {
		used, length := s.nextToOver(m, window)
		return length > (window*9/10).Seconds() && used > m.weight*length+errors*s.sampleSeconds(m.weight, seconds(length))
	}
	if s.slow() {
		return more(answersKept, surelyOver) // shareWindow has ten samples
	}
	return more(shareWindow, surelyOver) || more(answersKept, longOver)
}

// usesLess reports whether a lease with slices uses less than its share again, or there is no reason for its slices any more.
func (s *Scheduler) usesLess(m *member) bool {
	if m.demand.starves {
		return s.last >= m.demand.retry || s.withoutOthers()
	}
	return m.own.idle || m.own.n >= fewestOwn && m.own.mean() >= leastOwnIdle || s.withoutOthers()
}

// withoutOthers reports whether at most one lease has work, with slices or next to them.
func (s *Scheduler) withoutOthers() bool { return len(s.in)+len(s.free) < 2 }

// part is what a lease next to the slices gets if it always has work: the GPU divides its time by processes.
func (s *Scheduler) part(m *member) float64 {
	return s.partNextTo(m, func(x *member) bool { return s.useOver(x, useWindow) >= 0.15 })
}

// partNextTo is the same next to one of the leases with slices and to those of the others that have work.
func (s *Scheduler) partNextTo(m *member, works func(*member) bool) float64 {
	own := m.processCount()
	others, n := 0.0, 0.0
	for _, x := range s.in { // One of them has its slice.
		others, n = others+x.processCount(), n+1
	}
	others /= max(n, 1)
	for _, x := range s.free {
		if x != m && works(x) {
			others += x.processCount()
		}
	}
	return own / (own + others)
}

// evenPart is the same where each lease is one process.
func (s *Scheduler) evenPart(m *member) float64 {
	n := 1
	if len(s.in) > 0 {
		n++
	}
	for _, x := range s.free {
		if x != m && s.useOver(x, useWindow) >= 0.15 {
			n++
		}
	}
	return 1 / float64(n)
}
