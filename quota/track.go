package quota

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// track is what is known about the time of one GPU: which lease ran, by the scheduler's own log, and how idle the GPU was,
// by the driver's samples.
type track struct {
	id       gpu.UUID
	segments []segment     // contiguous, oldest first; the last one lasts until now
	periods  []period      // oldest first, without overlap
	read     time.Duration // when the driver was queried
	upTo     time.Duration // the end of the newest period
	ends     time.Duration // of the newest sample
	early    []Period      // samples from before the period was known
	gaps     [recent]time.Duration
	sampled  int           // gaps so far
	length   time.Duration // of a period; 0: not yet measured
	slow     bool          // the periods are too long for what is learned from them
	short    int           // gaps in a row that are short
	long     int           // gaps in a row that are long
	fast     bool          // fastAfter short ones were seen
	lost     bool          // samples were missed: what was since the last one is unknown, not idle
	full     float64       // the greatest sample so far
	idle     time.Duration // while a lease waited, in total
}

// recent is how many samples the period of the samples is estimated from.
const recent = 72

// longestPeriod is the longest period that a backlog can be measured with. 139, 167, 168 and 200 ms have been observed; the
// documentation of the driver says 1/6 s to 1 s by product.
const longestPeriod = 300 * time.Millisecond

// longestGap is the longest time between two samples that may be a period. After a longer one the GPU was idle, or samples were lost.
const longestGap = 2200 * time.Millisecond

// The number of gaps in a row that say that the periods are longer than longestPeriod, or are not. A GPU that has work now and then has
// long gaps too: where several short ones in a row have been seen, only many long ones say that the sampler is another one.
const (
	slowAfter      = 4
	slowAfterShort = 60
	fastAfter      = 4
)

// segment is a part of the time in which the same leases ran.
type segment struct {
	from    time.Duration
	state   state
	lease   *member // the one that runs, or whose backlog runs
	waiting bool    // a lease that uses this GPU is frozen for another one
}

// state is what runs in a segment.
type state int

const (
	unused  state = iota // no lease
	runs                 // one lease
	drains               // the rest of the queue of a lease that is frozen
	several              // several leases
	clears               // those next to the slices, while the others wait for them
)

// period is a part of the time and how long the GPU was idle in it.
type period struct {
	from, to time.Duration
	idle     time.Duration
}

// log adds a segment to every GPU on which something has changed.
func (s *Scheduler) log() {
	for _, t := range s.tracks {
		now, frozen := segment{from: s.last, state: unused}, false
		if s.phase == sliceRuns && s.onTrial(s.set[0]) {
			now.state, now.lease = runs, s.set[0]
		}
		for _, m := range s.in {
			switch {
			case !slices.Contains(m.tracks, t):
			case m.frozen:
				frozen = true
			case now.lease == nil:
				now.state, now.lease = runs, m
			default:
				now.state = several
			}
		}
		last := segment{}
		if n := len(t.segments); n != 0 {
			last = t.segments[n-1]
		}
		if s.phase == cleared {
			now.state = clears
		}
		switch {
		case now.state == several, now.state == clears:
			now.lease = nil
		case now.lease == nil && frozen && (last.state == runs || last.state == drains) && last.lease.frozen &&
			s.phase != sliceRuns:
			now.state, now.lease = drains, last.lease
		}
		now.waiting = frozen && s.phase != allCapped // idle for a cap is not idle for another lease
		if len(t.segments) == 0 || last.state != now.state || last.lease != now.lease || last.waiting != now.waiting {
			t.segments = append(t.segments, now)
		}
		if len(t.segments) > 1024 { // ObserveUtilization is not called
			t.segments = slices.Delete(t.segments, 0, 512)
		}
	}
}

// end is when a segment ends.
func (t *track) end(i int, now time.Duration) time.Duration {
	if i+1 < len(t.segments) {
		return t.segments[i+1].from
	}
	return now
}

// add adds samples, and returns the index of the first new period. In the time from idleFrom to idleUpTo the GPU had no work: a time
// after the last sample is idle if it is known to be, because a driver may lag.
func (t *track) add(u Utilization, idleFrom, idleUpTo time.Duration) int {
	first := len(t.periods)
	if u.From > t.read || t.read == 0 {
		t.upTo, t.ends, t.early = max(u.From, t.upTo), 0, nil // what was before is unknown
	}
	t.read = u.UpTo
	for _, p := range u.Periods {
		if p.End <= max(t.upTo, t.ends) {
			continue
		}
		if t.ends != 0 {
			t.measure(p.End - t.ends)
		}
		t.full = max(t.full, p.Busy)
		if t.lost || t.slow {
			t.upTo, t.early = p.End, nil // where the period begins is not known
		} else {
			t.early = append(t.early, p)
		}
		t.ends, t.lost = p.End, false
	}
	if t.length == 0 {
		// While nothing runs no sample shows the period: time that is too long ago to be attributed is not kept.
		t.upTo = max(t.upTo, u.UpTo-sensorTimeout)
		t.early = slices.DeleteFunc(t.early, func(p Period) bool { return p.End <= t.upTo })
		return first
	}
	for _, p := range t.early {
		from := max(p.End-t.length, t.upTo)
		if gap := p.End - t.upTo; gap <= t.longest() {
			from = t.upTo
		}
		t.pass(from)
		t.periods = append(t.periods, period{from, p.End, time.Duration(float64(p.End-from) * max(0, 1-p.Busy/t.busy()))})
		t.upTo = p.End
	}
	t.early = t.early[:0]
	// A sample of a period that ends before now would be known, but for the time that the driver needs.
	if !t.slow && !t.lost && t.upTo >= idleFrom-2*t.length {
		t.pass(min(u.UpTo-2*t.length, idleUpTo))
	}
	return first
}

// pass adds the time up to a moment as idle: the driver takes no samples of an idle GPU.
func (t *track) pass(to time.Duration) {
	for t.upTo < to {
		next := min(to, t.upTo+t.length)
		t.periods = append(t.periods, period{t.upTo, next, next - t.upTo})
		t.upTo = next
	}
}

// measure learns the period of the samples from the time between two of them: the median of those that can be periods.
func (t *track) measure(gap time.Duration) {
	if gap > longestGap {
		return
	}
	if gap > longestPeriod {
		t.long, t.short = t.long+1, 0
	} else {
		t.long, t.short = 0, t.short+1
	}
	most := slowAfter
	if t.fast {
		most = slowAfterShort
	}
	switch {
	case !t.slow && t.long >= most:
		t.slow, t.fast, t.sampled, t.length = true, false, 0, 0
	case t.slow && t.short >= fastAfter:
		t.slow, t.sampled, t.length = false, 0, 0
	}
	t.fast = t.fast || t.short >= fastAfter
	if gap > longestPeriod && !t.slow {
		return
	}
	t.gaps[t.sampled%recent] = gap
	if t.sampled++; t.sampled%8 == 0 || t.length == 0 && t.sampled >= slowAfter {
		n := min(t.sampled, recent)
		gaps := t.gaps
		slices.Sort(gaps[:n])
		t.length = max(gaps[n/2], 20*time.Millisecond)
	}
}

// longest is the longest period: between samples that are further apart the GPU was idle.
func (t *track) longest() time.Duration { return t.length * 3 / 2 }

// busy is the value of a sample of a busy GPU. A load that waits for the host has no such sample, and neither has a GPU with
// very short slices: what they report is not the value of a busy one.
func (t *track) busy() float64 { return max(t.full, 0.97) }

// overlap is how long two intervals overlap.
func overlap(a, b, c, d time.Duration) time.Duration { return max(0, min(b, d)-max(a, c)) }

// unexplained is the idle time between two moments that no running lease explains by what it usually leaves idle, and the
// length of the periods that it was measured in. A period may have several waits: each has the idle time after its expected
// backlog, and they divide the rest. ok is false if a part of the time has no samples.
func (t *track) unexplained(from, to, now time.Duration) (idle, length time.Duration, ok bool) {
	var covered time.Duration
	var sum float64
	for _, p := range t.periods {
		part := overlap(from, to, p.from, p.to)
		if part == 0 {
			continue
		}
		covered += part
		length += p.to - p.from
		excess, waits, expected := float64(p.idle), time.Duration(0), time.Duration(0)
		for i := len(t.segments) - 1; i >= 0; i-- {
			g := &t.segments[i]
			end := t.end(i, now)
			if end <= p.from {
				break
			}
			over := overlap(g.from, end, p.from, p.to)
			switch g.state {
			case drains:
				waits += over
				late := overlap(g.from+g.lease.backlog.mean, end, p.from, p.to)
				excess -= float64(late)
				if g.from < to && end > from {
					expected += late
				}
			case runs:
				excess -= g.lease.own.usual() * float64(over)
			case unused:
				excess -= float64(over)
			case several, clears:
			}
		}
		sum += float64(expected) + excess*float64(part)/float64(max(waits, part))
	}
	return min(max(time.Duration(sum), 0), to-from), length, covered >= to-from-time.Millisecond
}

// prune drops what is older than a moment.
func (t *track) prune(before time.Duration) {
	n := 0
	for n < len(t.periods) && t.periods[n].to < before {
		n++
	}
	t.periods = slices.Delete(t.periods, 0, n)
	n = 0
	for n+1 < len(t.segments) && t.segments[n+1].from < before {
		n++
	}
	t.segments = slices.Delete(t.segments, 0, n)
}
