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
	gaps     [recent]time.Duration
	sampled  int           // samples so far
	length   time.Duration // of a period; 0: not yet measured
	full     float64       // the greatest sample so far
	idle     time.Duration // while a lease waited, in total
}

// recent is how many samples the period of the samples is estimated from.
const recent = 72

// assumedPeriod is the time between two samples until it is measured: 72 in ten seconds. 139, 167, 168 and 200 ms have been
// observed.
const assumedPeriod = 139 * time.Millisecond

// longestPeriod is the longest period that is expected.
const longestPeriod = 300 * time.Millisecond

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
		switch {
		case now.state == several:
			now.lease = nil
		case now.lease == nil && frozen && (last.state == runs || last.state == drains) && last.lease.frozen &&
			!(s.phase == sliceRuns && s.started):
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

// add adds samples, and returns the index of the first new period.
func (t *track) add(u Utilization) int {
	first := len(t.periods)
	if u.From > t.read || t.read == 0 {
		t.upTo, t.ends = max(u.From, t.upTo), 0 // what was before is unknown
	}
	t.read = u.UpTo
	for _, p := range u.Periods {
		if p.End <= t.upTo {
			continue
		}
		gap := p.End - t.ends
		if t.ends == 0 {
			gap = t.period()
		} else if gap <= longestPeriod {
			t.gaps[t.sampled%recent] = gap
		}
		t.full = max(t.full, p.Busy)
		if t.sampled++; t.sampled%8 == 0 {
			t.measure()
		}
		if gap > t.longest() {
			gap = t.period()
		}
		from := max(p.End-gap, t.upTo)
		t.pass(from)
		t.periods = append(t.periods, period{from, p.End, time.Duration(float64(p.End-from) * max(0, 1-p.Busy/t.busy()))})
		t.upTo, t.ends = p.End, p.End
	}
	// A sample of a period that ends before now would be known, but for the time that the driver needs.
	t.pass(u.UpTo - 2*t.period())
	return first
}

// pass adds the time up to a moment as idle: the driver takes no samples of an idle GPU.
func (t *track) pass(to time.Duration) {
	for t.upTo < to {
		next := min(to, t.upTo+t.period())
		t.periods = append(t.periods, period{t.upTo, next, next - t.upTo})
		t.upTo = next
	}
}

// measure estimates the period of the samples: their median gap.
func (t *track) measure() {
	n := min(t.sampled, recent)
	var gaps [recent]time.Duration
	copy(gaps[:n], t.gaps[:n])
	slices.Sort(gaps[:n])
	known := slices.IndexFunc(gaps[:n], func(d time.Duration) bool { return d > 0 })
	if known >= 0 && n-known >= 8 {
		t.length = max(gaps[known+(n-known)/2], 20*time.Millisecond)
	}
}

// period is the time between two samples.
func (t *track) period() time.Duration {
	if t.length == 0 {
		return assumedPeriod
	}
	return t.length
}

// longest is the longest period: between samples that are further apart the GPU was idle.
func (t *track) longest() time.Duration {
	if t.length == 0 {
		return longestPeriod
	}
	return t.length * 3 / 2
}

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
			case several:
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
