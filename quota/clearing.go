package quota

import (
	"slices"
	"time"
)

// clearing is the time that leases next to the slices have without the leases that have them, when those keep them from their shares.
type clearing struct {
	part   float64       // of the time; 0: it is not needed
	leases int           // that it is for
	due    time.Duration // when it begins next
	now    bool          // the slice that runs ends for it; otherwise it begins after a slice
	until  time.Duration // when it ends
	ended  time.Duration // when it ended the last time
	// early is what they had for themselves before: a wait for queued work was longer than that. It is negative when the work was longer.
	early time.Duration
	own   ownIdle // of that time
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

// waitsFor reports whether the leases with slices wait for a lease if it gets too little.
func (s *Scheduler) waitsFor(m *member) bool {
	return m.demand.short || s.lowLatency(m)
}

// got is the part of what it could have that a lease next to the slices used, and of the time what it could have without the time for
// itself; not ok while that is not known.
func (s *Scheduler) got(m *member) (got, part float64, idle, ok bool) {
	d := &m.demand
	window, alone, part := hungryWindow, 1.0, s.part(m)
	if d.short {
		window, alone, part = useWindow, d.alone, d.part
	}
	if !s.lowLatency(m) {
		window = shareWindow
	}
	if d.short && !s.lowLatency(m) && s.last < d.shortAt+window {
		return 1, part, false, true // That it would use more was measured. How much it does is not known yet.
	}
	used, emptied, length := d.emptiedOver(window)
	could := alone*emptied/float64(max(s.clearing.leases, 1)) + part*(length-emptied)
	idle = used == 0
	if d.short {
		idle = s.useOver(m, shareWindow) == 0
	}
	return used / max(could, 1e-6), part, idle, length >= window.Seconds()*3/4
}

// planClearing computes which part of the time leases next to the slices need for themselves. A lease that gets a part p of the time next
// to the others gets f·a + (1-f)·p if it has the part f for itself and uses the part a of that. If it uses nearly all of that it would use
// more. What it has for itself is part of its share w, whether it uses it or not: f is at most (w-p)/(1-p). Several such leases divide f.
func (s *Scheduler) planClearing() {
	c := &s.clearing
	s.learnAlone()
	hunger, shares, parts, leases := -saturated, 0.0, 0.0, 0
	idle := true
	for _, m := range s.free {
		if !s.waitsFor(m) {
			continue
		}
		got, p, unused, ok := s.got(m)
		idle = idle && unused
		if !ok {
			continue
		}
		x := got - saturated
		if !s.lowLatency(m) {
			x = got - mostlyUsed
		}
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
	if len(s.in) == 0 || time.Duration(c.part*float64(clearCycle)) < s.quantum() {
		if c.part = 0; was > 0 {
			for _, m := range s.free {
				s.suffices(m)
			}
		}
	}
	if was == 0 && c.part > 0 {
		c.own.n = 0
		c.due, c.ended, c.now = s.last, s.last-clearCycle, true
	}
}

// needsClearing reports whether leases next to the slices need time for themselves.
func (s *Scheduler) needsClearing() bool {
	return s.clearing.part > 0 && len(s.in) > 0 && s.hasAnswers() && slices.ContainsFunc(s.free, s.waitsFor)
}

// clears reports whether they are to have it now.
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

// clear returns the next action while they have the GPU for themselves; ok is false when that has ended.
func (s *Scheduler) clear(now time.Duration) (a Action, ok bool) {
	const why = "a lease that runs next to the others needs the time of its share"
	c := &s.clearing
	if s.phase != cleared {
		s.endSet()
		s.enter(cleared)
		for _, f := range s.freezes {
			if f.next == 0 {
				f.next, f.cleared = now, true // What runs from now on is not its queued work.
				early := now - f.at - f.charged
				c.early += early
				s.emptied += max(early, 0)
			}
		}
		if !slices.ContainsFunc(s.free, func(m *member) bool { return m.demand.short }) {
			// A request that waits costs a service more than a second costs a training, but not if it leaves much of its time idle.
			c.early = max(c.early, 0)
			if c.own.n < fewestClear || c.own.mean() < leastIdle {
				c.early = 0
			}
		}
		length := time.Duration(c.part/(1-c.part)*float64(now-c.ended-c.early)) - c.early
		c.early = 0
		c.until, c.now = now+min(max(length, s.quantum()), s.cfg.MaxFrozen/2), false
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
