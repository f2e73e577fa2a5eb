package usage

import (
	"math"
	"time"

	"github.com/gpushare/gpushare/gpu"
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
	measured  bool          // a window had a measurement
}

// Idle is the idle time of a lease, or of a lease or a user on one GPU.
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

// IdleOn returns the idle time of a lease on one GPU, as of the last window: a lease may use one of its GPUs and hold the others.
// measured reports whether it was measured at all: before that, an idle time of zero says nothing.
func (m *Meter) IdleOn(id string, generation uint64, on gpu.UUID, now Moment) (idle Idle, measured, ok bool) {
	l := m.leases[leaseKey{id, generation}]
	if l == nil || l.endedAt != 0 {
		return Idle{}, false, false
	}
	m.advance(l, now)
	for i := range l.gpus {
		if g := &l.gpus[i]; g.id == on {
			return l.idleFrom(&g.idle), g.idle.measured, true
		}
	}
	return Idle{}, false, false
}

func (l *metered) idleTime() Idle { return l.idleFrom(&l.idle) }

func (l *metered) idleFrom(x *idleness) Idle {
	return Idle{ID: l.ID, Generation: l.Generation, Time: x.total, Known: l.elapsed-x.knownAt <= unknownAfter}
}

func (l *metered) updateIdle(length time.Duration, held bool) {
	busy, known := false, time.Duration(math.MaxInt64) // A window may have more than its length: measurements come late.
	for i := range l.gpus {
		g := &l.gpus[i]
		busy, known = busy || g.window.isBusy(), min(known, g.window.known)
		g.countIdle(g.idle.update(l.elapsed, length, held, g.window.isBusy(), g.window.known))
		g.window = window{}
	}
	if len(l.gpus) == 0 {
		known = 0
	}
	l.idle.update(l.elapsed, length, held, busy, known)
}

// countIdle counts a window of which it is known whether the GPU was idle.
func (g *meteredGPU) countIdle(known, idle time.Duration) {
	known = min(known, g.sum.held-g.sum.idleKnown) // A window may have what came late of the one before, and of the hour before.
	if known > 0 {
		g.sum.idleKnown += known
		g.sum.idle += min(idle, known)
	}
}

// update takes a window that ends now, and returns for how much of it the state is known, and for how much of that it was idle.
func (x *idleness) update(now, length time.Duration, held, busy bool, measured time.Duration) (known, idle time.Duration) {
	x.updatedAt = now
	switch {
	case held:
		x.knownAt = now
		return 0, 0
	case busy:
		x.total, x.knownAt, x.measured = 0, now, true
		return measured, 0
	case measured >= length/2:
		x.total += measured
		x.knownAt, x.measured = now, true
		return measured, measured
	}
	return 0, 0
}
