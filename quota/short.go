package quota

import "time"

// A GPU divides its time by processes, and the kernels of some are long: what a lease gets next to others says little of what it would
// use. So what it uses alone is measured, and one that gets less than that, and less than its share, is short: the others wait for it.

const (
	// shortPart is the part of what is due to a lease next to the others below which it is short.
	shortPart = 0.8
	// lackWindow is the time over which it is seen that a lease is short; shareWindow if it has low latency.
	lackWindow = 15 * time.Second
	// worthwhile is how much of the time in which the others wait a lease uses, above what it gets next to them, if it becomes short, and
	// hardlyWorth if it stays so: what it leaves of that is lost.
	worthwhile, hardlyWorth = 0.45, 0.4
	// worthATrial is the same where only its slices say what it uses alone: a trial measures that.
	worthATrial = 0.4
	// fewestClear is how many periods in which the others waited show what it uses alone.
	fewestClear = 8
	// mostlyUsed is the part of what it could have from which on a short lease would use more.
	mostlyUsed = 0.7
	// someUse is the use below which a lease that gets too little is not distinguished from one with little work, without the series.
	someUse = 0.1
)

// nextToOver sums up the answers of a window that ends with the last one, since a lease runs next to the slices: what it used in seconds,
// and of which time.
func (s *Scheduler) nextToOver(m *member, window time.Duration) (used, length float64) {
	all, sum, _, _ := m.demand.over(min(window, s.last-m.demand.nextTo))
	return all, sum.Seconds()
}

// lacks reports whether a lease that was measured is short.
func (s *Scheduler) lacks(m *member) bool {
	d := &m.demand
	if d.alone == 0 || d.short || len(s.in) == 0 || !s.hasSeries() && !s.lowLatency(m) {
		return false
	}
	window := lackWindow
	if s.lowLatency(m) {
		window = shareWindow
	}
	used, length := s.nextToOver(m, window)
	if length < (window * 9 / 10).Seconds() {
		return false
	}
	due, part := min(d.alone, m.weight), used/length
	errors, off := 1.0, s.sampleSeconds(part, seconds(length))/length
	if !s.hasSeries() {
		errors = 2 // What it uses alone is less certain, too.
	}
	if s.lowLatency(m) && part > shortPart*s.evenPart(m)-errors*off {
		return false // That it uses all that one process gets is seen without a trial.
	}
	least := worthwhile
	if !d.tried {
		least = worthATrial
	}
	return used < shortPart*due*length-s.sampleSeconds(due, seconds(length)) && worth(d.alone, part+off) >= least
}

// worth is how much of the time in which the others wait a lease uses, above what it gets next to them.
func worth(alone, part float64) float64 { return (alone - part) / max(1-part, 0.01) }

// mayLack reports whether a lease with low latency may be short: it has work, and less than its share. Without the series a trial shows
// little, and takes long: it needs a reason.
func (s *Scheduler) mayLack(m *member) bool {
	use := s.useOver(m, shareWindow)
	return use > 0 && use < 0.9*m.weight && !s.slow() && (s.hasSeries() || use >= someUse)
}

// shorten makes a lease short.
func (s *Scheduler) shorten(m *member) {
	used, length := s.nextToOver(m, lackWindow)
	m.demand.short, m.demand.part, m.demand.shortAt = true, used/length, s.last
}

// emptiedOver sums up the answers of a window that ends with the last one: what a lease used in seconds, for how long the others waited for
// those next to the slices, and of which time.
func (d *demand) emptiedOver(window time.Duration) (used, emptied, length float64) {
	for i := len(d.rows) - 1; i >= 0; i-- {
		a := &d.rows[i]
		if length+(a.to-a.from).Seconds()/2 > window.Seconds() {
			break
		}
		used, emptied, length = used+a.used, emptied+a.emptied.Seconds(), length+(a.to-a.from).Seconds()
	}
	return used, emptied, length
}

// suffices ends that a lease is short: it does not use what it gets. What it would use is measured again before it is short again.
func (s *Scheduler) suffices(m *member) {
	if d := &m.demand; d.short {
		d.short, d.alone = false, 0
		d.pauseFor(s.last, shortestPause)
	}
}

// learnAlone corrects what the only lease that others wait for uses alone by what it uses while they do.
func (s *Scheduler) learnAlone() {
	var only *member
	for _, m := range s.free {
		if s.waitsFor(m) {
			if only != nil {
				return
			}
			only = m
		}
	}
	if only == nil || !only.demand.short || s.lowLatency(only) || s.clearing.own.n < fewestClear {
		return
	}
	d := &only.demand
	d.alone = max(1-s.clearing.own.mean()-s.othersUse(only), 0.01)
	if used, emptied, length := d.emptiedOver(min(answersKept, s.last-d.shortAt)); length >= (answersKept * 2 / 3).Seconds() {
		d.part = min(max((used-d.alone*emptied)/max(length-emptied, 1), 0), 0.95)
	}
	if worth(d.alone, d.part) < hardlyWorth {
		s.suffices(only)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
