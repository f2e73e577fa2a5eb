package engine

import (
	"cmp"
	"slices"
	"time"
)

// historyLength is the longest window of BusyOver, and how long the account of a process without a context is kept.
const historyLength = 64 * time.Second

// account is the time of one process.
type account struct {
	pid        int
	contexts   int           // open ones
	lastClosed time.Duration // when the last one closed
	busy       float64       // ns of a whole engine, since the start
	period     float64       // the part since the last tick
	history    []busyPoint   // ascending; only ticks at which busy increased
}

// busyPoint is the value of busy at the end of a period.
type busyPoint struct {
	from, at time.Duration // the period
	busy     float64
}

// tick ends a period in which the process ran.
func (a *account) tick(from, to time.Duration) {
	a.period = 0
	a.history = append(a.history, busyPoint{from: from, at: to, busy: a.busy})
	// One point older than the window is kept: the start of the window is after it.
	for len(a.history) > 1 && a.history[1].at < to-historyLength {
		a.history = a.history[1:]
	}
}

// at returns the value of busy at a time, by linear interpolation within a period.
func (a *account) at(t time.Duration) float64 {
	i, _ := slices.BinarySearchFunc(a.history, t, func(m busyPoint, t time.Duration) int { return cmp.Compare(m.at, t) })
	if i == len(a.history) {
		// After the last point, busy only increased in the current period.
		return a.busy - a.period
	}
	to := a.history[i]
	var before float64
	if i > 0 {
		before = a.history[i-1].busy
	}
	// Points exist only where busy increased, so before its period it was constant.
	if t <= to.from {
		return before
	}
	return before + (to.busy-before)*float64(t-to.from)/float64(to.at-to.from)
}

// forgetLocked drops the accounts of processes that ended long ago.
func (e *Engine) forgetLocked() {
	for pid, a := range e.pids {
		if a.contexts == 0 && e.now-a.lastClosed > historyLength {
			delete(e.pids, pid)
		}
	}
}

// Busy returns the true time of every process that has or recently had a context, in time of a whole engine: two
// processes that run concurrently for a second have half a second each.
func (e *Engine) Busy() map[int]time.Duration {
	return e.BusyOver(0)
}

// BusyOver is Busy over the last window, at most 64 s; 0 since the start. The start of the window is exact to one sample
// period.
func (e *Engine) BusyOver(window time.Duration) map[int]time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advanceLocked()
	e.forgetLocked()
	out := make(map[int]time.Duration, len(e.pids))
	for pid, a := range e.pids {
		b := a.busy
		if window > 0 {
			b -= a.at(e.now - min(window, historyLength))
		}
		out[pid] = time.Duration(b)
	}
	return out
}
