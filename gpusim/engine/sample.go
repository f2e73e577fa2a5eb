package engine

import (
	"cmp"
	"slices"
	"time"
)

// The driver's ring of utilisation: 72 entries over ten seconds (NVIDIA's open kernel modules, ctrl2080perf.h).
const (
	RingSize     = 72
	SamplePeriod = 10 * time.Second / RingSize
)

// historyLength is the longest window of BusyOver, and how long the account of a process without a context is kept.
const historyLength = 64 * time.Second

// Sample names the process that was on the engine at the time of the sample.
type Sample struct {
	PID  int
	Time uint64 // µs since 1970
	SM   int    // percent of the period in which anything ran, 1…100
}

// account is the time of one process.
type account struct {
	pid        int
	contexts   int           // open ones
	lastClosed time.Duration // when the last one closed
	busy       float64       // ns of a whole engine, since the start
	period     float64       // the part since the last tick
	history    []busyPoint   // ascending; only ticks at which busy increased
}

// busyPoint is the value of busy at one time.
type busyPoint struct {
	at   time.Duration
	busy float64
}

// sampler is the ring and the current period.
type sampler struct {
	next   time.Duration // the end of this period
	busy   time.Duration // duration in this period in which anything ran
	active []*account    // the accounts that ran in this period
	ring   []Sample      // the oldest first
	seed   uint64
	total  float64 // ns of work in this period
}

func (s *sampler) add(a *account, work float64) {
	if work <= 0 {
		return
	}
	if a.period == 0 {
		s.active = append(s.active, a)
	}
	a.period += work
	a.busy += work
	s.total += work
}

// pick selects one of the active accounts, with a probability equal to its part of the work, as a sample at a random time
// would.
func (s *sampler) pick() *account {
	s.seed ^= s.seed << 13
	s.seed ^= s.seed >> 7
	s.seed ^= s.seed << 17
	at := float64(s.seed>>11) / (1 << 53) * s.total
	for _, a := range s.active {
		if at -= a.period; at < 0 {
			return a
		}
	}
	return s.active[len(s.active)-1]
}

// tickLocked ends a period: it adds one sample if anything ran, else none. So the ring of an idle GPU keeps its samples,
// including those of ended processes.
func (e *Engine) tickLocked() {
	s := &e.sampler
	if len(s.active) > 0 {
		// A whole percent, as the library reports, and never 0, because 0 is not listed.
		sm := max(int((s.busy*100+SamplePeriod/2)/SamplePeriod), 1)
		if len(s.ring) == RingSize {
			s.ring = append(s.ring[:0], s.ring[1:]...)
		}
		s.ring = append(s.ring, Sample{PID: s.pick().pid, Time: uint64(e.epoch.Add(e.now).UnixMicro()), SM: min(sm, 100)})
	}
	for _, a := range s.active {
		a.period = 0
		a.history = append(a.history, busyPoint{at: e.now, busy: a.busy})
		// One point older than the window is kept: the start of the window is after it.
		for len(a.history) > 1 && a.history[1].at < e.now-historyLength {
			a.history = a.history[1:]
		}
	}
	s.active, s.total, s.busy = s.active[:0], 0, 0
	s.next += SamplePeriod
	e.forgetLocked()
}

// forgetLocked drops the accounts of processes that ended long ago.
func (e *Engine) forgetLocked() {
	for pid, a := range e.pids {
		if a.contexts == 0 && e.now-a.lastClosed > historyLength {
			delete(e.pids, pid)
		}
	}
}

// Samples returns the ring's entries newer than since (µs since 1970), the oldest first; 0 for all of them.
func (e *Engine) Samples(since uint64) []Sample {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advanceLocked()
	i, _ := slices.BinarySearchFunc(e.sampler.ring, since+1, func(s Sample, t uint64) int { return cmp.Compare(s.Time, t) })
	return slices.Clone(e.sampler.ring[i:])
}

// Utilization returns the percentage of the last full sample period in which anything ran, 0…100.
func (e *Engine) Utilization() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advanceLocked()
	ring := e.sampler.ring
	if len(ring) == 0 {
		return 0
	}
	last := ring[len(ring)-1]
	if last.Time < uint64(e.epoch.Add(e.sampler.next-SamplePeriod).UnixMicro()) {
		return 0
	}
	return last.SM
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

// at returns the value of busy at a time, by linear interpolation between two points.
func (a *account) at(t time.Duration) float64 {
	i, _ := slices.BinarySearchFunc(a.history, t, func(m busyPoint, t time.Duration) int { return cmp.Compare(m.at, t) })
	if i == len(a.history) {
		// After the last point, busy only increased in the current period.
		return a.busy - a.period
	}
	to := a.history[i]
	from := busyPoint{at: to.at - SamplePeriod}
	if i > 0 {
		from.busy = a.history[i-1].busy
		// Points exist only where busy increased, so between distant points it was constant until one period before the
		// second.
		from.at = max(from.at, a.history[i-1].at)
	}
	if t <= from.at {
		return from.busy
	}
	return from.busy + (to.busy-from.busy)*float64(t-from.at)/float64(to.at-from.at)
}
