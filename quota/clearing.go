package quota

import "time"

// clearing is the time that leases with low latency have without the leases that have slices, when those keep them from their shares.
type clearing struct {
	part   float64       // of the time; 0: it is not needed
	leases int           // that it is for
	due    time.Duration // when it begins next
	now    bool          // the slice that runs ends for it; otherwise it begins after a slice
	until  time.Duration // when it ends
	ended  time.Duration // when it ended the last time
	trial  trial
}

const (
	// clearCycle is the time in which they have it once.
	clearCycle = time.Second
	// hungryWindow is the time over which it is seen that a lease uses nearly all that it can get: two answers of the driver, 14 samples.
	hungryWindow = 2 * time.Second
	// saturated is from which part of what it can get on a lease would use more, and nearly how much less counts as such when it is
	// computed how much more it may have.
	saturated, nearly = 0.85, 0.15
	// clearMore and clearLess are by how much the part changes for each answer, times the part by which the use is more or less than that.
	// A request that waits costs a service more than a second costs a training.
	clearMore, clearLess = 2.0, 0.1
)

// planClearing computes which part of the time leases with low latency need for themselves. A lease that gets a part p of the time next to
// the others gets f + (1-f)·p if it has the part f for itself. If it uses nearly all of that it would use more. It has its share w, if
// it uses all, with f = (w-p)/(1-p). Several such leases divide f.
func (s *Scheduler) planClearing() {
	c := &s.clearing
	hunger, shares, parts, leases := -saturated, 0.0, 0.0, 0
	idle := true
	for _, m := range s.light {
		used, length := m.low.window(hungryWindow)
		idle = idle && used == 0
		if length < hungryWindow*3/4 {
			continue
		}
		p := s.part(m)
		x := float64(used)/float64(length)/(c.part/float64(max(c.leases, 1))+(1-c.part)*p) - saturated
		if hunger = max(hunger, x); x > -nearly {
			shares, parts, leases = shares+m.weight, parts+p, leases+1
		}
	}
	change := clearLess * hunger
	if hunger > 0 {
		change = clearMore * hunger
	}
	was := c.part
	c.part, c.leases = max(0, c.part+change), leases
	if idle {
		c.part = 0 // They have no work.
	}
	if leases > 0 {
		c.part = min(c.part, max(0, (shares-parts)/(1-min(parts, 0.9))))
	}
	if s.trying() {
		return
	}
	if len(s.in) == 0 || time.Duration(c.part*float64(clearCycle)) < s.quantum() {
		c.part = 0
	}
	if was == 0 && c.part > 0 {
		c.due, c.ended, c.now = s.last, s.last-clearCycle, true
	}
}

// trying reports whether a lease waits for its trial, or has it.
func (s *Scheduler) trying() bool {
	t := &s.clearing.trial
	return t.lease != nil && (t.until == 0 || s.last < t.until)
}

// needsClearing reports whether leases with low latency need time for themselves.
func (s *Scheduler) needsClearing() bool {
	return (s.clearing.part > 0 || s.trying()) && len(s.light) > 0 && len(s.in) > 0 && s.hasAnswers()
}

// clears reports whether leases with low latency are to have the GPU for themselves now.
func (s *Scheduler) clears(now time.Duration) bool {
	return s.needsClearing() && now >= s.clearing.due
}

// interrupts reports whether the slice that runs ends for that.
func (s *Scheduler) interrupts(now time.Duration) bool {
	return s.clears(now) && (s.clearing.now || len(s.in) == 1)
}

// clearingWait is when that is so next.
func (s *Scheduler) clearingWait(now, until time.Duration) time.Duration {
	if due := s.clearing.due; s.needsClearing() && due > now {
		return min(until, due)
	}
	return until
}

// clear returns the next action while leases with low latency have the GPU for themselves; ok is false when that has ended.
func (s *Scheduler) clear(now time.Duration) (a Action, ok bool) {
	const why = "a lease with low latency needs the time of its share"
	c := &s.clearing
	if s.phase != cleared {
		s.endSet()
		s.enter(cleared)
		for _, f := range s.freezes {
			if f.next == 0 {
				f.next = now // What runs from now on is not its queued work.
			}
		}
		length := time.Duration(c.part / (1 - c.part) * float64(now-c.ended))
		c.until, c.now = now+min(max(length, s.quantum()), clearCycle), false
		if s.trying() {
			c.until = now + trialLength
			c.trial.from, c.trial.until = now, c.until
		}
		s.log()
	}
	if end := s.waitLimit(c.until); now < end && len(s.in) > 0 {
		if a, ok := s.freeze(now, why); ok {
			return a, true
		}
		return s.wait(now, end, why), true
	}
	c.ended, c.due = now, now+time.Duration((1-c.part)*float64(clearCycle))
	s.enter(concurrent)
	return Action{}, false
}
