package quota

import "time"

// fallback lets all leases run concurrently for a while when they do not use their slices: then exclusive slices waste the
// GPU, and all leases get more without them.
type fallback struct {
	observed  time.Duration // enforced time with samples, since the last decision
	idle      time.Duration // of it
	measuring time.Duration // of idle: waits that measured a backlog
	until     time.Duration // all run concurrently until this; 0: they do not
	lasts     time.Duration // how long, the last time; 0: it was not needed the last time
	reason    string
}

const (
	leastUsed      = 0.8              // of the slices
	leastUsedAgain = 0.85             // after all ran concurrently
	fallbackAfter  = 30 * time.Second // of observed slices
	fallbackRetry  = 5 * time.Second  // the same, for a retry
	shortestLapse  = time.Minute
	longestLapse   = 8 * time.Minute
	fewestOwnIdles = 5 // periods of a lease
)

func (f *fallback) reset() { *f = fallback{} }

// on reports whether all leases run concurrently.
func (f *fallback) on(now time.Duration) bool {
	if f.until != 0 && now >= f.until {
		f.until, f.observed, f.idle, f.measuring = 0, 0, 0, 0
	}
	return f.until != 0
}

// start lets all leases run concurrently, each time in a row for longer.
func (f *fallback) start(now time.Duration, why string) {
	f.lasts = min(max(2*f.lasts, shortestLapse), longestLapse)
	f.until, f.reason = now+f.lasts, why
}

// decide checks whether the slices are used. used is the part of the slices in which their leases keep the GPU busy; known
// says that it was measured for each.
func (f *fallback) decide(now time.Duration, used float64, known bool) bool {
	window, least := fallbackAfter, leastUsed
	if f.lasts != 0 {
		window, least = fallbackRetry, leastUsedAgain
		if !known {
			window *= 3
		}
	}
	if f.until != 0 || f.observed < window {
		return false
	}
	used = min(used, float64(f.observed-f.idle)/float64(max(f.observed-f.measuring, 1)))
	f.observed, f.idle, f.measuring = 0, 0, 0
	if used >= least {
		f.lasts = 0
		return false
	}
	f.start(now, "all leases run concurrently for a while: they did not use their slices")
	return true
}

// used is the part of the slices in which their leases keep the GPU busy, and whether it is known for each lease.
func (s *Scheduler) used() (used float64, known bool) {
	var sum, total float64
	known = true
	for _, m := range s.in {
		total += m.weight
		part := 1.0
		if m.own.n >= fewestOwnIdles {
			part -= m.own.mean()
		} else {
			known = false
		}
		sum += m.weight * part
	}
	if total == 0 {
		return 1, false
	}
	return sum / total, known
}
