package usage

import (
	"math"
	"time"
)

// Window is the time for which a lease is found idle or busy.
const Window = 10 * time.Second

// leastBusy is the part of a window that must be busy for the lease not to be idle. It must also be more than its own error.
const leastBusy = 0.01

// window is what was measured of a lease on one GPU since the last window.
type window struct {
	known, busy time.Duration
	variance    float64 // square seconds
}

func (w *window) add(known, busy time.Duration, variance float64) {
	w.known, w.busy, w.variance = w.known+known, w.busy+busy, w.variance+variance
}

// isBusy reports whether kernels ran: at least 1 % of the time, or more than the error of the measurement.
func (w *window) isBusy() bool {
	busy := w.busy.Seconds()
	return w.busy > 0 && (busy >= leastBusy*w.known.Seconds() || busy > math.Sqrt(w.variance))
}

// idleness is for how long a lease was seen idle without an interruption.
type idleness struct {
	total     time.Duration
	updatedAt time.Duration // since the start of the lease
	knownAt   time.Duration // since the start of the lease: the end of the last window with a measurement
}

// Idle is the idle time of a lease.
type Idle struct {
	ID         string
	Generation uint64
	Time       time.Duration // for how long it was seen idle; what was not measured does not count
	Known      bool          // its busy time was measured in the last minute, or the lease has not run for a minute
}

// unknownAfter is after how long without a measurement the idle time is unknown.
const unknownAfter = time.Minute

// UpdateIdle updates the leases whose window is over and returns the idle time of all that run. A window of which less than half was
// measured on any GPU changes nothing, unless another GPU was busy; nor does one of a lease that was held: it could not run.
func (m *Meter) UpdateIdle(now Moment, held func(id string) bool) []Idle {
	var out []Idle
	for _, l := range m.sorted() {
		if l.endedAt != 0 {
			continue
		}
		m.advance(l, now)
		if length := l.elapsed - l.idle.updatedAt; length >= Window {
			l.updateIdle(length, held(l.ID))
		}
		out = append(out, l.idleTime())
	}
	return out
}

// Idle returns the idle time of a lease, as of the last window.
func (m *Meter) Idle(id string, generation uint64, now Moment) (Idle, bool) {
	l := m.leases[leaseKey{id, generation}]
	if l == nil || l.endedAt != 0 {
		return Idle{}, false
	}
	m.advance(l, now)
	return l.idleTime(), true
}

func (l *metered) idleTime() Idle {
	return Idle{ID: l.ID, Generation: l.Generation, Time: l.idle.total, Known: l.elapsed-l.idle.knownAt <= unknownAfter}
}

func (l *metered) updateIdle(length time.Duration, held bool) {
	busy, known := false, time.Duration(math.MaxInt64) // A window may have more than its length: measurements come late.
	for i := range l.gpus {
		w := &l.gpus[i].window
		busy, known = busy || w.isBusy(), min(known, w.known)
		*w = window{}
	}
	l.idle.updatedAt = l.elapsed
	switch {
	case held:
		l.idle.knownAt = l.elapsed
	case busy:
		l.idle.total, l.idle.knownAt = 0, l.elapsed
	case known >= length/2 && len(l.gpus) > 0:
		l.idle.total += known
		l.idle.knownAt = l.elapsed
	}
}
