package quota

import (
	"slices"
	"time"
)

// ownIdle is what a lease leaves idle in its own slices, and whether it does anything at all.
type ownIdle struct {
	parts  [20]float64 // of the newest periods that lie in its slices
	n      int
	idle   bool          // it has the GPU open but does nothing: it is not frozen, and no other lease waits for it
	since  time.Duration // idle, or participating, since then
	unused time.Duration // of its slices, without any work
	rest   time.Duration // the shortest time that it is idle: longer if it is idle again soon
}

// idleAfter is how much of a GPU's time a lease has without work in it until it counts as idle, and leastIdleAfter the same of the short
// slices of a small share.
const idleAfter, leastIdleAfter = 1500 * time.Millisecond, 300 * time.Millisecond

// idleAfter is so much time of slices that a lease has it in about three seconds.
func (s *Scheduler) idleAfter(m *member) time.Duration {
	if m.queues() || s.last < m.backlog.longUntil {
		return idleAfter
	}
	return min(max(time.Duration(m.weight*float64(3*time.Second)), leastIdleAfter), idleAfter)
}

func (o *ownIdle) add(part float64) {
	o.parts[o.n%len(o.parts)] = part
	o.n++
}

// mean is the idle part of the lease's slices, 0…1; 0 while it is unknown.
func (o *ownIdle) mean() float64 {
	n := min(o.n, len(o.parts))
	if n == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range o.parts[:n] {
		sum += x
	}
	return sum / float64(n)
}

// newest is the mean of the newest periods: what it leaves idle now, if that has changed.
func (o *ownIdle) newest() float64 {
	const most = 5
	sum, n := 0.0, min(o.n, most)
	for i := range n {
		sum += o.parts[(o.n-1-i)%len(o.parts)]
	}
	return sum / float64(max(n, 1))
}

// most is the idle part of the two periods with most of it: the others may have had the queued work of other leases. It is not ok while
// fewer are known.
func (o *ownIdle) most() (part float64, ok bool) {
	n := min(o.n, len(o.parts))
	if n < 2 {
		return 0, false
	}
	sorted := o.parts
	slices.Sort(sorted[:n])
	return sorted[n-2], true
}

// usual is the median of the idle parts: how much the lease leaves idle around a wait. 0 while it is unknown.
func (o *ownIdle) usual() float64 {
	n := min(o.n, len(o.parts))
	if n < 4 {
		return 0
	}
	sorted := o.parts
	slices.Sort(sorted[:n])
	return sorted[n/2]
}

// mostExcused is the idle part of its slices for which a lease is not charged: it uses the rest as well as one may expect. From there
// on it is charged for more and more of it, and for all of it from twice that part on: a lease that leaves a lot idle must not get the
// time of those that do not.
const mostExcused = 1 - leastUsed

// charge is what a lease is charged for a slice: the time that it used. A host that waits for each kernel leaves a few percent
// idle between them, and its share is one of the time that was used.
func (o *ownIdle) charge(ran time.Duration) time.Duration {
	return time.Duration(float64(ran) * (1 - o.excused()))
}

func (o *ownIdle) excused() float64 {
	idle := o.usual()
	return max(0, min(idle, 2*mostExcused-idle))
}

// rest makes a lease idle.
func (s *Scheduler) rest(m *member) {
	o := &m.own
	if s.last-o.since < 10*time.Second {
		o.rest = min(max(2*o.rest, time.Second), 4*time.Second)
	} else {
		o.rest = 0
	}
	o.idle, o.since, o.unused, o.n = true, s.last, 0, 0
	s.stale = true
}
