package quota

import (
	"slices"
	"time"
)

// backlog learns how long the queued work of a lease continues to run after a freeze. Some freezes measure: the scheduler
// waits longer after them than the work ever ran, so that the GPU is idle at the end. After the others it waits so short
// that little time is lost; work that still runs then overlaps with the next slice and is charged by its expectation.
type backlog struct {
	mean time.Duration // expected, charged at the freeze
	wait time.Duration // after a freeze that does not measure

	observed  []time.Duration // by the newest measuring freezes, at most keptObservations, oldest first
	sorted    []time.Duration // the same, ascending
	first     time.Duration   // the next wait without an observation; 0: firstWait
	since     int             // freezes since the last one that measured
	measured  int             // measuring freezes since the start
	lengthy   int             // results of at least longBacklog
	longUntil time.Duration   // it is not measured before this
	missed    int             // measuring freezes in a row after which the GPU was never idle
	shorter   int             // other freezes in a row after which it was idle earlier than ever before
	epoch     int             // number of the start: results of freezes from before are not compared

	// Without utilisation of the GPU, mean and wait are an integral of what the driver attributes to the processes.
	charged time.Duration // accounted time at the last answer
	answers int           // so far
}

const (
	keptObservations = 32
	// Freezes that measure after a start, and then every how many; more if the backlog varies.
	measuringFirst, measuringEvery             = 8, 8
	measuringFirstVaries, measuringEveryVaries = 12, 6
	variesFrom                                 = 20 * time.Millisecond // between the shortest and the longest
	// measuringCosts is how much idle time a slice has for measuring, on average, and measuringSeldom the longest distance for that.
	measuringCosts, measuringSeldom = 5 * time.Millisecond, 20
	firstWait                       = 600 * time.Millisecond
	longestWait                     = 4 * time.Second
	// A backlog that was twice this long is not measured for some time: the waits would leave the GPU idle for as long.
	longBacklog, longFor = 800 * time.Millisecond, 30 * time.Minute
	// idleBudget is the mean idle time that is accepted at the end of a wait.
	idleBudget = 4 * time.Millisecond
)

// restart forgets the observations. The next freezes wait for this long; 0: firstWait.
func (b *backlog) restart(first time.Duration) {
	*b = backlog{
		first:     min(first, longestWait),
		epoch:     b.epoch + 1,
		lengthy:   b.lengthy,
		longUntil: b.longUntil,
		mean:      b.mean,
		wait:      b.wait,
		charged:   b.charged,
		observed:  b.observed[:0],
		sorted:    b.sorted[:0],
	}
	if first == 0 {
		b.mean, b.wait = 0, 0
	}
}

// plan is how long to wait after a freeze, and whether it measures. limit is the longest possible wait.
func (b *backlog) plan(limit time.Duration) (time.Duration, bool) {
	if len(b.sorted) == 0 {
		first := b.first
		if first == 0 {
			first = firstWait
		}
		return min(first, limit), true
	}
	first, every := measuringFirst, measuringEvery
	if b.longest()-b.sorted[0] >= variesFrom {
		first, every = measuringFirstVaries, measuringEveryVaries
		if b.longest() > 4*b.sorted[0] {
			// Anything may run after a freeze, as with long kernels: one that measures leaves the GPU idle for the difference to the mean.
			every = min(max(every, int((b.longest()-b.mean)/measuringCosts)), measuringSeldom)
		}
	}
	if b.since++; b.measured < first || b.missed > 0 || b.since >= every {
		b.since = 0
		b.measured++
		return min(b.longest()+b.beyond()+6*time.Millisecond, limit), true
	}
	return min(b.wait, limit), false
}

// beyond is how much longer than the longest of few observations the next may be.
func (b *backlog) beyond() time.Duration {
	n := len(b.sorted)
	return (b.sorted[n-1] - b.sorted[0]) / time.Duration(n)
}

// longest is the longest backlog that was observed.
func (b *backlog) longest() time.Duration {
	if len(b.sorted) == 0 {
		return 0
	}
	return b.sorted[len(b.sorted)-1]
}

// add adds an observation.
func (b *backlog) add(d time.Duration, budget time.Duration) {
	b.dropEarly()
	if len(b.observed) == keptObservations {
		b.observed = slices.Delete(b.observed, 0, 1)
	}
	b.observed = append(b.observed, d)
	b.sorted = append(b.sorted[:0], b.observed...)
	slices.Sort(b.sorted)
	var sum time.Duration
	for _, d := range b.sorted {
		sum += d
	}
	n := time.Duration(len(b.sorted))
	b.mean = sum / n
	// The longest wait whose expected idle time is within the budget: with the k shortest below it, the idle time is
	// (k·wait − their sum)/n.
	sum = 0
	for i, d := range b.sorted {
		sum += d
		b.wait = (time.Duration(len(b.sorted))*budget + sum) / time.Duration(i+1)
		if i+1 == len(b.sorted) || b.wait <= b.sorted[i+1] {
			break
		}
	}
}

// dropEarly drops observations from the start that are far longer than the others: when time slices begin, the queued work of
// all leases runs at once.
func (b *backlog) dropEarly() {
	for len(b.observed) >= 5 && len(b.observed) <= 12 {
		n := len(b.sorted)
		if b.sorted[n-1] < 2*b.sorted[n/2]+20*time.Millisecond {
			return
		}
		i := slices.Index(b.observed, b.sorted[n-1])
		if i > 2 {
			return
		}
		b.observed, b.sorted = slices.Delete(b.observed, i, i+1), slices.Delete(b.sorted, n-1, n)
	}
}

// above is the expected length of work that still ran after a wait.
func (b *backlog) above(wait time.Duration) time.Duration {
	i, _ := slices.BinarySearch(b.sorted, wait+1)
	if i == len(b.sorted) {
		return wait
	}
	var sum time.Duration
	for _, d := range b.sorted[i:] {
		sum += d
	}
	return sum / time.Duration(len(b.sorted)-i)
}

// learn adds the result of a freeze: the work ran for d, or, if it is censored, at least for the wait.
func (b *backlog) learn(f *freeze, d time.Duration, censored bool, budget time.Duration) {
	wait := f.next - f.at
	measuring := f.measures && wait >= f.wait-time.Millisecond
	if d >= longBacklog && f.epoch == b.epoch {
		b.lengthy++
	}
	if b.lengthy >= 2 {
		b.observed, b.sorted, b.lengthy, b.longUntil = b.observed[:0], b.sorted[:0], 0, f.next+longFor
		return
	}
	switch {
	case f.epoch != b.epoch, wait > f.wait+time.Second: // the scheduler was not called in time
	case measuring && !censored:
		b.missed = 0
		b.add(d, budget)
	case measuring:
		b.missed++
		if len(b.sorted) != 0 && b.missed < 2 {
			b.add(wait, budget)
			return
		}
		if wait >= longestWait {
			b.add(wait, budget)
			return
		}
		// The work is longer than all before.
		longer := wait + max(10*time.Millisecond, wait/2)
		if len(b.sorted) == 0 {
			longer = 2 * wait
		}
		b.restart(longer)
	case !censored && len(b.sorted) != 0 && d < b.sorted[0]-max(10*time.Millisecond, (b.longest()-b.sorted[0])/4):
		// The work is shorter than all before. Once may be the idle time of a lease that had nothing to do in the next slice.
		if b.shorter++; b.shorter >= 2 {
			b.restart(b.longest() + 6*time.Millisecond)
			b.add(d, budget)
		}
	default:
		b.shorter = 0
	}
}
