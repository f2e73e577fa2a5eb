package quota

import (
	"math"
	"slices"
	"time"
)

// class says how a lease uses the GPU, as measured.
type class int

const (
	// measured: what it uses alone is not known. It runs next to the others, but for trials, in which it has the GPU to itself.
	measured class = iota
	// heavy: it keeps the GPU busy. It gets slices of its own.
	heavy
	// light: it uses less than its share. It runs next to the others, and is never frozen.
	light
	// limited: it leaves the GPU idle at times, and used more than its share. It runs next to the others, and is frozen by itself.
	limited
)

func (c class) String() string { return [...]string{"measured", "heavy", "light", "limited"}[c] }

// classes are the transitions between classes, with the reason for each.
var classes = map[class][]class{
	measured: {heavy, light},             // in its trials it did not, or did, leave the GPU idle
	heavy:    {measured, light, limited}, // it seems to use less than its slices; it does; it has work again, after it did nothing
	light:    {measured, heavy, limited}, // it may need more than it gets; it takes all that it can get; it used more than its share
	limited:  {heavy, light},             // it takes all that it can get; it uses less than its share again
}

// demand is what is known about how much a lease would use.
type demand struct {
	class  class
	before class         // the class before, while it is measured
	since  time.Duration // of the class
	nextTo time.Duration // it runs next to the slices of others since then
	known  bool          // it was measured at least once

	alone float64 // the part of the time that it uses when it has the GPU to itself; 0: not known
	tried bool    // that was measured in a long trial, because it seemed to be short
	long  bool    // measured: its trial is long
	short bool    // it gets clearly less than is due to it next to the others: they wait for it
	part  float64 // short: what it gets next to them
	// shortAt is since when it is short.
	shortAt time.Duration
	// starves: it has low latency, and slices for a while, because next to the others it gets too little, and alone it keeps the GPU busy.
	starves bool

	trials   int           // since it is measured
	inTrials time.Duration // their length, since it is measured
	// trialFrom and trialAt are the begin and the end of the last one.
	trialFrom, trialAt time.Duration
	whole              bool          // it was not interrupted
	retry              time.Duration // it is not measured again before this
	pause              time.Duration // between two measurements; longer each time that the result is the same

	hungryAfter, hungryPause time.Duration // the same for the sign that it takes all that it can get

	rows []row // the newest, oldest first
	past past  // those before them

	credit    time.Duration // limited: what it may still use before it is frozen
	level     time.Duration // limited: what it has of its share; below zero it has to wait
	rate      float64       // limited: its use while it runs, from the two sums
	usedFor   float64       // limited: seconds that it used, the newer the more they count
	thawedFor float64       // the same of seconds in which it ran
	thawedAt  time.Duration // limited: it is not frozen again at once
	froze     time.Duration // limited: the last time at which it was frozen
	wasFrozen bool          // limited: since then
	rose      time.Duration // limited: when it rose above its share; 0: it is not known
	usual     float64       // limited: the part of the time that it used before
	expectation

	seen        time.Duration // its frozen time at the last answer
	occupied    time.Duration // its occupancy at the last answer
	emptied     time.Duration // Scheduler.emptied at the last answer
	unaccounted time.Duration // next to the slices: what it used according to the answers, and was not accounted yet
}

// newDemand is that of a lease that joins.
func newDemand(x *Member, now time.Duration) demand {
	if x.LowLatency && x.Cap == nil {
		return demand{class: light, before: light, since: now, nextTo: now, retry: now + firstTrial}
	}
	return demand{since: now, nextTo: now}
}

// row is what the driver's samples of processes said of a lease.
type row struct {
	from, to time.Duration
	used     float64       // seconds
	thawed   time.Duration // of this time it was not frozen
	emptied  time.Duration // of this time those that have slices were frozen for those next to them
	occupied time.Duration
	idle     float64 // seconds in which no lease used the GPU
}

const (
	// leastIdle is the idle part of its own slices from which on a lease runs next to the others.
	leastIdle = 0.2
	// hungryFor is for how long a lease takes all that it can get next to the others until it is heavy, longer without a series, and
	// hungryPart how much of it is all.
	hungryFor                    = 3 * time.Second
	hungryPart, surelyHungryPart = 0.8, 0.9
	// The pauses between two measurements of a lease.
	shortestPause, shortestHungry, longestPause = time.Minute, 10 * time.Second, 5 * time.Minute
	// limitLevel is half of what a lease above its share may use between two freezes; more with a large share.
	limitLevel = 15 * time.Millisecond
	// longestDebt is what a lease has to wait for at most, when it used more than its share.
	longestDebt = 2 * time.Second
)

// mayRunFree reports whether a lease runs next to the slices of others while it has work.
func (s *Scheduler) mayRunFree(m *member) bool {
	return m.demand.class != heavy && s.distinguishes(m)
}

// runsFree reports whether a lease runs next to the slices of others.
func (s *Scheduler) runsFree(m *member) bool { return s.present(m) && s.mayRunFree(m) }

// distinguishes reports whether a lease may run next to the slices of others.
func (s *Scheduler) distinguishes(m *member) bool {
	return len(s.tracks) == 1 && m.Cap == nil && !s.cfg.Concurrent
}

// change changes the class of a lease.
func (s *Scheduler) change(m *member, to class) {
	d := &m.demand
	if d.class == to {
		return
	}
	if s.changed != nil {
		s.changed(d.class, to)
	}
	was := d.class
	d.class, d.since, d.short = to, s.last, false
	if to == light && (was == heavy || was == measured && d.before != light) {
		d.nextTo = s.last
	}
	switch to {
	case measured:
		d.before, d.trials, d.inTrials, d.trialAt = was, 0, 0, 0
		least := shortestPause
		switch {
		case s.lowLatency(m):
			least = firstTrial
		case s.slow(): // a trial is long
			least = longestPause
		}
		if d.pauseFor(s.last, least); s.lowLatency(m) && d.pause > firstTrial {
			d.pause, d.retry = longestPause, s.last+longestPause
		}
	case heavy:
		switch {
		case s.lowLatency(m):
			m.deficit = 0
		case d.known:
			m.deficit = -min(max(0, s.arrears(m)-d.inTrials), longestDebt)
		}
		d.inTrials = 0
	case limited:
		s.limitFrom(m)
		d.expectation = expectation{}
		d.rate = s.useOver(m, 3*time.Second)
		d.usedFor, d.thawedFor = 2*d.rate, 2
		d.froze, d.thawedAt = s.last, 0
	case light:
	}
	if was == measured {
		s.noteTrial(m)
		d.known = true
	}
	m.own.n, m.own.unused = 0, 0
	s.stale = true
}

// unmeasured is what a lease is whose trials have no result: what it was, or heavy.
func (s *Scheduler) unmeasured(m *member) class {
	if m.demand.before == light || s.lowLatency(m) {
		return light
	}
	return heavy
}

// pauseFor sets when a lease is measured again.
func (d *demand) pauseFor(now, least time.Duration) {
	d.pause = min(max(2*d.pause, least), longestPause)
	d.retry = now + d.pause
}

// useOver is the part of the time that a lease used, over a window that ends with the last answer.
func (s *Scheduler) useOver(m *member, window time.Duration) float64 {
	used, length, _, _ := m.demand.over(window)
	if length == 0 {
		return 0
	}
	return used / length.Seconds()
}

// over sums up the answers of a window that ends with the last one: what was used in seconds, and of which time.
func (d *demand) over(window time.Duration) (used float64, length, thawed, occupied time.Duration) {
	for i := len(d.rows) - 1; i >= 0; i-- {
		a := &d.rows[i]
		if length+(a.to-a.from)/2 > window {
			break
		}
		used += a.used
		length += a.to - a.from
		thawed += a.thawed
		occupied += a.occupied
	}
	return used, length, thawed, occupied
}

// overWindow is what a lease used in the last shareWindow.
func (s *Scheduler) overWindow(m *member) time.Duration {
	used, _, _, _ := m.demand.over(shareWindow)
	return time.Duration(used * float64(time.Second))
}

// arrears is by how much a lease used more than its share, over that part of shareWindow for which it is most. What it did not use
// before is no credit.
func (s *Scheduler) arrears(m *member) time.Duration {
	var sum, most float64
	var length time.Duration
	for i := len(m.demand.rows) - 1; i >= 0; i-- {
		a := &m.demand.rows[i]
		if length += a.to - a.from; length > shareWindow+time.Second/2 {
			break
		}
		sum += a.used - m.due*(a.to-a.from).Seconds()
		most = max(most, sum)
	}
	return time.Duration(most * float64(time.Second))
}

// allowance is what a lease may use in shareWindow, with a number of standard errors of the samples.
func (s *Scheduler) allowance(m *member, errors float64) time.Duration {
	return time.Duration((m.due*shareWindow.Seconds() + errors*s.sampleSeconds(m.due, shareWindow)) * float64(time.Second))
}

// sampleSeconds is the standard error in seconds of the use over a time, for a part of it: each sample names one process.
func (s *Scheduler) sampleSeconds(part float64, length time.Duration) float64 {
	part = min(max(part, 0.02), 0.98)
	return math.Sqrt(part * (1 - part) * length.Seconds() * s.usualPeriod().Seconds())
}

// usualPeriod is the time between two samples, also before it was measured.
func (s *Scheduler) usualPeriod() time.Duration {
	if period := s.samplePeriod(); period != 0 {
		return period
	}
	return time.Second / 7
}

// over reports whether a lease used more than its share: clearly, in shareWindow, or a little for a longer time.
func (s *Scheduler) over(m *member) bool {
	errors := 1.0
	if s.isModerate(m) {
		errors = overUsual
	}
	if s.overWindow(m) > s.allowance(m, errors) {
		return true
	}
	used, length, _, _ := m.demand.over(answersKept)
	return length > answersKept*9/10 && used > m.due*length.Seconds()+0.5*s.sampleSeconds(m.due, length)
}

// learnDemand adds an answer of the driver to what is known about a lease.
func (s *Scheduler) learnDemand(m *member, from, to time.Duration, part, idle float64) {
	d := &m.demand
	frozen, length := s.frozenTime(m), to-from
	a := row{
		from:     from,
		to:       to,
		used:     part * length.Seconds(),
		thawed:   max(0, length-(frozen-d.seen)),
		emptied:  min(s.emptied-d.emptied, length),
		occupied: m.usage.occupancy - d.occupied,
		idle:     idle * length.Seconds(),
	}
	d.seen, d.emptied = frozen, s.emptied
	if s.runsFree(m) {
		d.unaccounted += time.Duration(part * float64(length))
	}
	d.occupied = m.usage.occupancy
	d.rows = append(d.rows, a)
	n := 0
	for n+1 < len(d.rows) && d.rows[n+1].from <= to-answersKept {
		n++
	}
	for i := range d.rows[:n] {
		d.past.add(&d.rows[i])
	}
	d.rows = slices.Delete(d.rows, 0, n)
	if d.class == limited {
		s.learnLimit(m, &a)
	}
}

// classify changes the classes of leases whose use is not that of their class.
func (s *Scheduler) classify() {
	s.shareOut()
	for _, m := range s.members {
		if !s.present(m) || !s.distinguishes(m) {
			continue
		}
		switch {
		case m.demand.class == measured:
			s.classifyMeasured(m)
		case s.lowLatency(m):
			s.classifyLowLatency(m)
		case m.demand.class == heavy:
			s.classifyHeavy(m)
		default:
			s.classifyFree(m)
		}
	}
	s.refresh()
}

func (s *Scheduler) classifyMeasured(m *member) {
	d := &m.demand
	many := len(s.in)+len(s.free) > mostTried
	if many || s.showsNothing(m) || d.trials == 0 && s.last >= d.since+trialWithin || s.slow() && !d.known {
		// With the slices of many leases there is no time for a trial, and where samples are rare it needs a reason.
		s.change(m, s.unmeasured(m))
		return
	}
	if s.hasSeries() {
		idle, ok := m.own.most()
		switch {
		case ok:
			// At first the queued work of others runs in it.
			busy, known := s.tracks[0].busyPart(d.trialFrom+(d.trialAt-d.trialFrom)/2, d.trialAt)
			if !known && s.lowLatency(m) && s.last < d.trialAt+sensorTimeout || d.trialAt < d.trialFrom {
				return // It runs next to the others meanwhile.
			}
			if !known {
				busy = 1 - idle
			}
			s.measure(m, idle < leastIdle, busy-s.othersUse(m))
		case d.trialAt != 0 && s.last >= d.trialAt+resultWithin && (s.tracks[0].upTo >= d.trialAt || s.last >= d.trialAt+sensorTimeout):
			s.change(m, s.unmeasured(m))
		}
		return
	}
	s.classifyByRows(m)
}

// showsNothing reports whether a trial of a lease would: only those with low latency run next to it, and they do so in any trial.
func (s *Scheduler) showsNothing(m *member) bool {
	low, others := 0, len(s.in)
	for _, x := range s.free {
		switch {
		case x == m:
		case s.lowLatency(x):
			low++
		default:
			others++
		}
	}
	return low > 0 && others == 0
}

// measure ends the measurement of a lease: whether it keeps the GPU busy, and which part of the time it uses alone.
func (s *Scheduler) measure(m *member, busy bool, alone float64) {
	d := &m.demand
	d.alone, d.tried, d.long = min(max(alone, 0.01), 1), d.long, false
	if busy && !s.lowLatency(m) {
		s.change(m, heavy)
		return
	}
	was := d.class
	s.change(m, light)
	if was == measured && d.tried {
		s.noteNeed(m, d.alone)
	}
}

// classifyByRows classifies a lease by the driver's answers about processes, without a series.
func (s *Scheduler) classifyByRows(m *member) {
	d := &m.demand
	if d.trials == 0 || d.trialAt == 0 || len(d.rows) == 0 || d.rows[len(d.rows)-1].to < d.trialAt {
		return
	}
	if !d.whole {
		if s.last >= d.trialAt+resultWithin {
			s.change(m, s.unmeasured(m))
		}
		return
	}
	var idle, used, known, before, usual float64
	for _, a := range d.rows {
		if a.to <= d.trialFrom {
			before += (a.to - a.from).Seconds()
			usual += a.used
			continue
		}
		idle += a.idle
		used += a.used
		known += (a.to - a.from).Seconds()
	}
	length := (d.trialAt - d.trialFrom).Seconds()
	switch {
	case known < length/2: // There is no answer for most of it.
		s.change(m, s.unmeasured(m))
	case s.slow() && used < length/4 && d.trials < 2:
	default:
		// A sample may name no process while none runs, or not be there: then only what names the lease counts.
		busy := used >= length/4 && (s.slow() || idle < 2*leastIdle*length)
		s.measure(m, busy, (used-usual/max(before, 1)*max(known-length, 0))/length)
	}
}

func (s *Scheduler) classifyHeavy(m *member) {
	d := &m.demand
	if m.queues() {
		return
	}
	if s.sleeps(m) {
		s.rest(m)
		return
	}
	if s.hasSeries() && m.own.n >= 10 && m.own.mean() >= leastIdle {
		d.hungryPause = min(max(2*d.hungryPause, shortestHungry), longestPause)
		d.hungryAfter = s.last + d.hungryPause
		s.measure(m, false, 1-m.own.newest())
		return
	}
	if s.last < d.retry || s.last < d.since+8*time.Second || len(s.in) < 2 {
		return
	}
	used, length, _, occupied := d.over(min(answersKept, s.last-d.since))
	part := min(occupied.Seconds()/max(length.Seconds(), 1), m.weight)
	errors := 2.0
	if s.slow() {
		errors = 1 // a trial decides
	}
	if length >= 8*time.Second && used < 0.7*part*length.Seconds()-errors*s.sampleSeconds(part, length) {
		s.change(m, measured)
	}
}

// sleeps reports whether a lease did nothing in its slices: no sample named it, where several are expected.
func (s *Scheduler) sleeps(m *member) bool {
	var occupied time.Duration
	for i := len(m.demand.rows) - 1; i >= 0; i-- {
		a := &m.demand.rows[i]
		if a.used > 0 || a.from < m.demand.since || a.from < m.own.since {
			break
		}
		occupied += a.occupied
	}
	period := s.samplePeriod()
	if period == 0 {
		period = time.Second // the longest that is documented
	}
	return occupied > max(idleSamples*period, idleAfter/2)
}

// queues reports whether so much work of a lease runs after each freeze that it does not wait for its host: it keeps the GPU busy, and
// what samples say of its slices is of earlier ones.
func (m *member) queues() bool { return m.backlog.mean >= inexactMean }

func (s *Scheduler) classifyFree(m *member) {
	d := &m.demand
	if s.hungry(m) || s.exceeds(m) {
		s.change(m, heavy)
		return
	}
	if used, length, _, _ := d.over(
		shareWindow,
	); used == 0 && length > shareWindow*9/10 && s.last >= d.since+shareWindow &&
		s.hasAnswers() {
		s.rest(m)
		return
	}
	if s.classifyRise(m) {
		return
	}
	switch {
	case d.class == light && s.lacks(m):
		if d.tried {
			s.shorten(m)
		} else if s.last >= d.retry && s.tries() && s.isModest(m) {
			s.change(m, measured)
			d.long = true
		}
	case d.class == light && s.starves(m):
		s.change(m, measured)
	}
}

// classifyRise changes the class of a lease next to the slices that uses more than its share, or that does not any more.
func (s *Scheduler) classifyRise(m *member) bool {
	d := &m.demand
	switch {
	case d.class == light && s.pressed(m) && s.over(m):
		s.change(m, limited)
	case d.class == light && s.pressed(m) && s.rising(m):
	case d.class == limited && !m.frozen && s.mayBeLight(m):
		s.change(m, light)
	default:
		return false
	}
	return true
}

// mayBeLight reports whether a lease above its share is not limited any more.
func (s *Scheduler) mayBeLight(m *member) bool {
	return !s.pressed(m) || s.last >= m.demand.froze+shareWindow && !s.over(m) || s.hasPaid(m)
}

// hungry reports whether a lease next to the others takes all that it can get, and that is more than its share, or all that it may have.
func (s *Scheduler) hungry(m *member) bool {
	d := &m.demand
	part := max(s.part(m), s.evenPart(m)) // One with less may be short: with slices it would have more, and be frozen.
	if d.class == light && m.weight <= 0.9*part || s.last < d.hungryAfter || d.short {
		return false
	}
	if !s.slow() && part > m.due && s.within(m) {
		return false // It may be a burst that is no more than its share.
	}
	enough, least := hungryFor, hungryPart
	if !s.hasSeries() || d.class == limited {
		enough, least = 4*hungryFor, surelyHungryPart
	}
	var used float64
	var thawed time.Duration
	for i := len(d.rows) - 1; i >= 0 && d.rows[i].from >= d.since-time.Second && thawed < enough; i-- {
		used += d.rows[i].used
		thawed += d.rows[i].thawed
	}
	return thawed >= enough && used/thawed.Seconds() >= least*part
}

// starves reports whether a lease next to the others may need more than it gets, because others take more than their shares: how much it
// gets there says little when their kernels are long, or their processes many.
func (s *Scheduler) starves(m *member) bool {
	d := &m.demand
	return s.last >= max(d.retry, d.since+max(shortestPause, d.pause)) && s.tries() && len(s.in) > 0 && s.useOver(m, shareWindow) > 0 &&
		!d.short && s.isModest(m)
}

// fallsBack reports whether leases that would have slices run concurrently: those next to the slices are then not frozen either. One alone
// in the slices has nothing to fall back from.
func (s *Scheduler) fallsBack() bool { return s.fallback.until != 0 && len(s.in) > 1 }

// pressed reports whether another lease needs what this one uses above its share.
func (s *Scheduler) pressed(m *member) bool {
	if !s.distinguishes(m) || s.fallsBack() {
		return false
	}
	return len(s.in) > 0 || len(s.free) > 1 && s.hasAnswers() && s.freeUse() > 0.9
}

// freeUse is the part of the time that is used by leases next to the slices.
func (s *Scheduler) freeUse() float64 {
	var sum float64
	for _, m := range s.free {
		sum += s.useOver(m, useWindow)
	}
	return min(sum, 1)
}

// othersUse is the part of the time that others next to the slices used lately.
func (s *Scheduler) othersUse(m *member) float64 {
	var sum float64
	for _, x := range s.free {
		if x != m {
			sum += s.useOver(x, useWindow)
		}
	}
	return min(sum, 1)
}
