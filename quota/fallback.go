package quota

import "time"

// fallback lets all leases run concurrently for a while when they do not use their slices: then exclusive slices waste the
// GPU, and all leases get more without them.
type fallback struct {
	observed  time.Duration // enforced time with samples, since the last decision
	idle      time.Duration // of it
	measuring time.Duration // of idle: waits that measured a backlog
	until     time.Duration // all run concurrently until this
	lasts     time.Duration // how long, the last time; 0: it was not needed the last time
	active    bool
	reason    string
}

const (
	leastUsed      = 0.8              // of the slices
	fallbackAfter  = 30 * time.Second // of observed slices
	fallbackRetry  = 5 * time.Second  // the same, for a retry
	shortestLapse  = time.Minute
	longestLapse   = 8 * time.Minute
	fewestOwnIdles = 5 // periods of a lease
)

func (f *fallback) reset() { *f = fallback{} }

// on reports whether all leases run concurrently.
func (f *fallback) on(now time.Duration) bool {
	if f.active && now >= f.until {
		f.active, f.observed, f.idle, f.measuring = false, 0, 0, 0
	}
	return f.active
}

// start lets all leases run concurrently, each time in a row for longer.
func (f *fallback) start(now time.Duration, why string) {
	f.lasts = min(max(2*f.lasts, shortestLapse), longestLapse)
	f.until, f.reason, f.active = now+f.lasts, why, true
}

// decide checks whether the slices are used. used is the part of the slices in which their leases keep the GPU busy.
func (f *fallback) decide(now time.Duration, used float64) bool {
	window := fallbackAfter
	if f.lasts != 0 {
		window = fallbackRetry
	}
	if f.active || f.observed < window {
		return false
	}
	used = min(used, float64(f.observed-f.idle)/float64(max(f.observed-f.measuring, 1)))
	f.observed, f.idle, f.measuring = 0, 0, 0
	if used >= leastUsed {
		f.lasts = 0
		return false
	}
	f.start(now, "all leases run concurrently for a while: they did not use their slices")
	return true
}

// used is the part of the slices in which their leases keep the GPU busy.
func (s *Scheduler) used() float64 {
	var sum, total float64
	for _, m := range s.in {
		total += m.weight
		part := 1.0
		if m.own.n >= fewestOwnIdles {
			part -= m.own.mean()
		}
		sum += m.weight * part
	}
	if total == 0 {
		return 1
	}
	return sum / total
}
