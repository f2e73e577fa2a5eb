package quota

import (
	"slices"
	"time"
)

// sensors is which answers the driver gives. An answer that is missing says nothing: it is not read as an idle GPU.
type sensors struct {
	since     time.Duration   // leases have slices since then
	seriesAt  time.Duration   // the last answer with a sample, or of a GPU that is idle; 0: there was none
	processAt time.Duration   // the last answer for processes; 0: there was none
	busyAt    time.Duration   // the last answer with a busy process
	busyFrom  time.Duration   // the time that this answer is for begins here
	busyEnds  []time.Duration // of the newest samples of the series that say that the GPU was busy
	heldFrom  time.Duration   // the samples of processes are missing since then; 0: they are not
	answered  time.Duration   // until when there was an answer for processes
	nameless  bool            // the last answer named no process
}

// sensorTimeout is how long an answer is expected. One per second is usual.
const sensorTimeout = 5 * time.Second

// hasAnswers reports whether what the driver said of processes is of now: an answer that is missing says nothing.
func (s *Scheduler) hasAnswers() bool {
	return s.sensors.processAt != 0 && s.last-s.sensors.processAt <= 2*sensorTimeout
}

// idle is the time in which the samples of processes say that the GPU had no work, after the last in which it had; without them, up
// to a moment that is given.
func (x *sensors) idle(otherwise time.Duration) (from, upTo time.Duration) {
	switch {
	case x.processAt == 0:
		return 0, otherwise
	case x.busyAt == x.processAt || x.heldFrom != 0:
		return 0, 0
	}
	return x.busyFrom, x.processAt
}

// hasSeries reports whether the driver reports the utilisation of the GPU over time, often enough to measure a backlog with. At the
// start it is expected to.
func (s *Scheduler) hasSeries() bool {
	x := &s.sensors
	switch {
	case s.slow():
		return false
	case x.seriesAt != 0:
		return s.last-x.seriesAt < sensorTimeout
	}
	return x.processAt == 0 && s.last-x.since < sensorTimeout/2
}

// slow reports whether the driver samples a GPU too seldom to measure a backlog.
func (s *Scheduler) slow() bool {
	for _, t := range s.tracks {
		if t.slow {
			return true
		}
	}
	return false
}

// samplePeriod is the time between two samples; 0: it was not measured.
func (s *Scheduler) samplePeriod() time.Duration {
	var out time.Duration
	for _, t := range s.tracks {
		out = max(out, t.length)
	}
	return out
}

// forgetSeries forgets what was learned from the series: its periods are not what they seemed to be.
func (s *Scheduler) forgetSeries() {
	s.freezes = s.freezes[:0]
	for _, m := range s.members {
		m.backlog.restart(0)
		m.backlog.answers = 0
		m.own.n, m.own.unused = 0, 0
		m.demand.since, m.demand.trials, m.demand.trialAt = s.last, 0, 0
	}
	s.fallback.reset()
}

// periodsKept is for how long the periods of the series are kept at least.
const periodsKept = 2 * time.Second

// leastBusy is the value from which on a sample of the series says that processes were busy.
const leastBusy = 0.5

// noteBusy keeps the ends of the newest samples of the series that say that the GPU was busy.
func (x *sensors) noteBusy(periods []Period, now time.Duration) {
	for _, p := range periods {
		if p.Busy >= leastBusy && (len(x.busyEnds) == 0 || p.End > x.busyEnds[len(x.busyEnds)-1]) {
			x.busyEnds = append(x.busyEnds, p.End)
		}
	}
	n := 0
	for n < len(x.busyEnds) && x.busyEnds[n] <= now-2*periodsKept {
		n++
	}
	x.busyEnds = slices.Delete(x.busyEnds, 0, n)
}

// busySeries reports whether the series says that the GPU was busy in the last seconds of a time: then samples of its processes are
// missing if there are none.
func (s *Scheduler) busySeries(from, to time.Duration) bool {
	if len(s.tracks) != 1 {
		return false
	}
	from = max(from, to-periodsKept)
	period := s.usualPeriod()
	n := 0
	for _, end := range s.sensors.busyEnds {
		if end-period/2 > from && end <= to {
			n++
		}
	}
	return n > 0 && time.Duration(n)*period > (to-from)/2
}

// missing reports whether the samples of processes are missing rather than without a busy process: a driver that samples seldom has
// none in some answers. from is when the time begins that the answer is for.
func (s *Scheduler) missing(from, to time.Duration, sum float64) (time.Duration, bool) {
	x := &s.sensors
	if x.heldFrom != 0 {
		from = x.heldFrom
	}
	first := sum == 0 && !x.nameless
	if x.nameless = sum == 0; first && x.seriesAt != 0 && !s.shared() {
		x.heldFrom = from // The series was not read: with the next answer it shows whether there was no work.
		return from, true
	}
	period := s.samplePeriod()
	if period == 0 {
		period = time.Second // the longest that is documented
	}
	seldom := period > longestPeriod && to-from < period*5/2 // There may be no sample yet.
	if sum == 0 && s.busySeries(from, to) {
		if x.heldFrom = from; !seldom {
			x.heldFrom = to // What ran in this time is not known, also later.
			s.rebase()
		}
		return from, true // It is not as if the driver had answered.
	}
	x.processAt = s.last
	if sum == 0 && seldom {
		x.heldFrom = from
		return from, true
	}
	x.heldFrom = 0
	if sum > 0 {
		x.busyAt, x.busyFrom = s.last, from
		for _, t := range s.tracks {
			// The GPU had work, and the series has no sample of it: it has stopped.
			t.lost = t.lost || t.ends != 0 && from > t.ends+sensorTimeout
		}
	}
	return from, false
}

// The exactness of shares in points over windows of 10 s: what the matrix of test/fairness is held to.
const (
	exactWithSeries    = 2.0
	exactWithoutSeries = 3.0
	exactSlow          = 6.0 // where the driver samples twice or once a second
)

// exact is to how many points of ten seconds shares are exact.
func (s *Scheduler) exact() float64 {
	switch {
	case s.slow():
		return exactSlow
	case s.hasSeries():
		return exactWithSeries
	}
	return exactWithoutSeries
}
