package quota

import "time"

// A lease that used less than its share and then keeps the GPU busy is known in one or two answers of the driver: long before it has used
// the share of shareWindow. From then on its use is expected, and not only measured a second later: it may still use what is left of its
// share, and is frozen at the moment at which that is expected to be used.

const (
	// riseErrors is how many standard errors of the samples, and one sample, it must have used more than its share, over riseLeast to
	// riseMost.
	riseErrors = 2.5
	// riseLeast has fewestRise samples.
	fewestRise          = 7
	riseLeast, riseMost = 900 * time.Millisecond, 6 * time.Second
	// riseAll is for how long it takes all that it can get, which is more than its share, but not that many errors.
	// It is fewestAll samples at least.
	fewestAll = 25
	riseAll   = 3500 * time.Millisecond
	// exceedErrors is how many of shareWindow it must have used more than that to have slices.
	exceedErrors = 2.5
	// expectedFor is how many seconds count as seen of a lease that is expected to take all that it can get.
	expectedFor = 4.0
	// denied is the part of what is expected of a lease below which it is not so, with one standard error.
	denied = 0.6
	// restsAfter is the time without use that shows that a lease has no work any more.
	restsAfter = 2 * time.Second
	// paidAfter is the time without use after which what a lease used before is of an earlier burst.
	paidAfter = 3500 * time.Millisecond
	// tolerance is by how much it may use more than its share of shareWindow before it is frozen for that.
	tolerance = 150 * time.Millisecond
	// restsWithout is the same of what was expected meanwhile, in seconds.
	restsWithout = 0.4
)

// expectation is what is expected of a lease above its share, and what was seen of it since then, in seconds.
type expectation struct {
	on             bool
	used, expected float64
}

// rises reports whether a lease next to the slices lately used more than its share, over the newest answers: clearly, or all that it can
// get. part is what it used since then.
func (s *Scheduler) rises(m *member) (since time.Duration, part float64, ok bool) {
	var used float64
	var length time.Duration
	rows, all, least := m.demand.rows, s.partNow(m), max(riseLeast, fewestRise*s.usualPeriod())
	for i := len(rows) - 1; i >= 0 && length < riseMost; i-- {
		used += rows[i].used
		if length += rows[i].to - rows[i].from; length < least {
			continue
		}
		sample := s.usualPeriod().Seconds()
		clearly := used > m.due*length.Seconds()+riseErrors*s.sampleSeconds(m.due, length)+sample
		long := length >= max(riseAll, fewestAll*s.usualPeriod())
		if clearly || all > m.due && long && used >= hungryPart*all*length.Seconds()+sample/2 && s.likely(m, all, used, length) {
			return rows[i].from, used / length.Seconds(), true
		}
	}
	return 0, 0, false
}

// within reports whether a lease used no more than its share in shareWindow.
func (s *Scheduler) within(m *member) bool { return s.overWindow(m) <= s.allowance(m, 0) }

// windowUse is what a lease used in the shareWindow that ends now, with what is expected since the last answer. Before it rose that is what
// was seen, or what it used usually if that is less: many samples say that better than few.
func (s *Scheduler) windowUse(m *member, now time.Duration) time.Duration {
	d := &m.demand
	var before, used float64
	from := now - shareWindow
	for i := range d.rows {
		a := &d.rows[i]
		rate := a.used / max((a.to-a.from).Seconds(), 1e-3)
		before += rate * overlap(from, max(d.rose, from), a.from, a.to).Seconds()
		used += rate * overlap(max(d.rose, from), now, a.from, a.to).Seconds()
	}
	used += min(before, d.usual*max(d.rose-from, 0).Seconds())
	if n := len(d.rows); n > 0 && !m.frozen {
		used += d.rate * (now - d.rows[n-1].to).Seconds()
	}
	return seconds(used)
}

// isOver reports whether a lease that was not frozen yet since it is above its share used all of that.
func (s *Scheduler) isOver(m *member, now time.Duration) bool {
	return m.demand.wasFrozen || s.windowUse(m, now) >= s.allowance(m, 0)
}

// isModest reports whether a lease uses no more than its share now either: a trial, in which it has the GPU to itself, is no part of a
// burst.
func (s *Scheduler) isModest(m *member) bool {
	return s.within(m) && s.useOver(m, riseMost) <= m.due
}

// rising limits a lease that rises.
func (s *Scheduler) rising(m *member) bool {
	if s.slow() || m.demand.short || s.clearing.part > 0 {
		return false // A few samples show nothing; and the others wait for one that is short.
	}
	since, part, ok := s.rises(m)
	if !ok {
		return false
	}
	s.change(m, limited)
	s.roseAt(m, since)
	if all := s.partNow(m); part >= mostlyUsed*all {
		m.demand.expect(all) // It is likely that it takes all that it can get.
	} else {
		m.demand.rate, m.demand.usedFor, m.demand.thawedFor = part, 2*part, 2
	}
	return true
}

// exceeds reports whether a lease above its share used more than that, although it is frozen by itself: what it has queued runs meanwhile.
func (s *Scheduler) exceeds(m *member) bool {
	d := &m.demand
	return d.class == limited && s.last >= d.since+shareWindow && s.overWindow(m) > s.allowance(m, exceedErrors)
}

// wakes lets a lease that did nothing, and has work again, run next to the slices until it has used its share: so what it does is short, or
// it is seen soon that it is not. It is expected to take all that it can get.
func (s *Scheduler) wakes(m *member) {
	d := &m.demand
	if d.class == measured || !s.distinguishes(m) || s.lowLatency(m) || !s.hasSeries() || m.queues() ||
		s.last-s.sensors.processAt >= sensorTimeout {
		return // Without an answer it is only probed.
	}
	if s.refresh(); !s.pressed(m) {
		return
	}
	if s.allowance(m, 0)+tolerance < seconds(2*s.partNow(m)*SamplesEvery.Seconds()) {
		return // Its share would be used, as expected, before an answer says what it does.
	}
	s.change(m, limited)
	s.limitFrom(m)
	s.roseAt(m, s.last-riseLeast)
	d.froze = s.last
	d.expect(s.partNow(m))
}

// roseAt sets when a lease rose, and what it may use from what it used since then and what it used usually before.
func (s *Scheduler) roseAt(m *member, at time.Duration) {
	d := &m.demand
	var used, length float64
	for i := range d.rows {
		if a := &d.rows[i]; a.to <= at {
			used, length = used+a.used, length+(a.to-a.from).Seconds()
		}
	}
	d.rose, d.usual, d.rate = at, used/max(length, shareWindow.Seconds()), 0
	d.credit = max(0, s.allowance(m, 0)+tolerance-s.windowUse(m, s.last))
}

// partNow is what a lease next to the slices gets if it always has work, as far as is known of the last seconds.
func (s *Scheduler) partNow(m *member) float64 {
	return s.partNextTo(m, func(x *member) bool {
		return !x.frozen && (x.demand.expectation.on || s.useOver(x, restsAfter) >= 0.15)
	})
}

// limitFrom sets what a lease may use from what it used.
func (s *Scheduler) limitFrom(m *member) {
	d := &m.demand
	d.rose, d.usual, d.wasFrozen = 0, 0, false
	d.credit = max(0, s.allowance(m, 0)+tolerance-s.overWindow(m))
	d.level = -min(s.arrears(m), longestDebt)
}

// expect sets what a lease is expected to use while it runs. Samples change that slowly.
func (d *demand) expect(part float64) {
	d.rate, d.usedFor, d.thawedFor = part, part*expectedFor, expectedFor
	d.expectation = expectation{on: true}
}

// denies reports whether an answer of a lease says that it does not do what was expected of it.
func (s *Scheduler) denies(m *member, a *row) bool {
	x := &m.demand.expectation
	if !x.on {
		return false
	}
	x.used += a.used
	x.expected += m.demand.rate * a.thawed.Seconds()
	return x.used < denied*x.expected-s.usualPeriod().Seconds()
}

// learnLimit adds an answer of a lease above its share.
func (s *Scheduler) learnLimit(m *member, a *row) {
	d := &m.demand
	length := a.to - a.from
	if s.denies(m, a) {
		d.expectation = expectation{}
		s.limitFrom(m)
		s.roseAt(m, s.last) // It did not: what it uses is what it used before.
		d.rate = s.useOver(m, restsAfter)
		d.usedFor, d.thawedFor = 2*d.rate, 2
		return
	}
	d.correct(a.used-d.rate*a.thawed.Seconds(), s.sampleSeconds(d.rate*a.thawed.Seconds()/length.Seconds(), length))
	// What was queued when it was frozen runs after that, and is use of the time before.
	kept := 1 - min(a.thawed.Seconds()/4, 0.4)
	d.usedFor, d.thawedFor = d.usedFor*kept+a.used, d.thawedFor*kept+a.thawed.Seconds()
	if d.rests() {
		d.usedFor, d.expectation = 0, expectation{}
	}
	if d.rate = d.usedFor / max(d.thawedFor, 0.05); d.expectation.on {
		d.rate = s.partNow(m)
	}
}

// correct corrects what a lease has of its share by what an answer differs from what was expected: little within the error of the
// samples, and by all that is beyond it.
func (d *demand) correct(off, usual float64) {
	within := min(max(off, -usual), usual)
	off = within/8 + off - within
	d.level -= seconds(off)
	if d.credit > 0 {
		d.credit = max(0, d.credit-seconds(off))
	}
}

// hasPaid reports whether a lease that used more than its share has paid that, and uses less.
func (s *Scheduler) hasPaid(m *member) bool {
	d := &m.demand
	var idle time.Duration
	for i := len(d.rows) - 1; i >= 0 && d.rows[i].used == 0; i-- {
		idle += d.rows[i].thawed
	}
	return d.level >= 0 && idle >= paidAfter && s.within(m) && s.hasAnswers()
}

// rests reports whether a lease that may run does nothing: several samples would name it otherwise.
func (d *demand) rests() bool {
	var thawed, expected float64
	for i := len(d.rows) - 1; i >= 0 && d.rows[i].used == 0; i-- {
		thawed += d.rows[i].thawed.Seconds()
		if expected = d.rate * thawed; thawed >= restsAfter.Seconds()*0.9 || expected >= restsWithout {
			return true
		}
	}
	return false
}
