package quota

import "time"

// limit returns a freeze or a thaw of a lease that runs next to the others: one that uses more than its share is frozen by itself.
func (s *Scheduler) limit(now time.Duration) (Action, bool) {
	for _, m := range s.free {
		if now < m.retryAt {
			continue
		}
		d := &m.demand
		size, closed := limitSize(m), d.class == limited && s.pressed(m)
		switch {
		case m.frozen && d.class == measured && !m.freezeFailed && s.inTrial() && !m.running:
		case m.frozen && (!closed || d.level >= size || now >= m.frozenAt+s.longestLimit() || m.freezeFailed):
			d.thawedAt = now
			return Action{Kind: Thaw, Lease: m.Lease, Reason: "it may use its share again"}, true
		case !m.frozen && closed && d.credit <= 0 && d.level <= -size && now >= d.thawedAt+50*time.Millisecond && s.isOver(m, now):
			d.froze, d.wasFrozen = now, true
			return s.freezeOne(m, now, "it has used its share"), true
		}
	}
	return Action{}, false
}

// inTrial reports whether a lease has the GPU to itself for a trial.
func (s *Scheduler) inTrial() bool {
	return (s.phase == sliceOpens || s.phase == sliceRuns) && len(s.set) == 1 && s.onTrial(s.set[0])
}

// longestLimit is the longest time for which a lease above its share is frozen at once.
func (s *Scheduler) longestLimit() time.Duration {
	if s.slow() { // What it has to pay is uncertain.
		return min(2*time.Second, s.cfg.MaxFrozen-50*time.Millisecond)
	}
	return s.cfg.MaxFrozen - 50*time.Millisecond
}

func limitSize(m *member) time.Duration {
	return max(limitLevel, time.Duration(m.due*float64(time.Second/5)))
}

// limitWait is when a lease is to be frozen or thawed next, or has its next trial.
func (s *Scheduler) limitWait(now, until time.Duration) time.Duration {
	for _, m := range s.free {
		d := &m.demand
		if d.class == measured && s.phase == concurrent && s.tries() && d.trials < mostTrials {
			until = min(until, max(now+50*time.Millisecond, d.trialAt+trialPause))
		}
		if d.class != limited {
			continue
		}
		size := limitSize(m)
		switch {
		case m.frozen:
			until = min(
				until,
				max(now+time.Millisecond, min(m.frozenAt+s.longestLimit(), now+time.Duration(float64(size-d.level)/max(m.due, 0.001)))),
			)
		case d.rate > m.due:
			level := max(float64(d.level+size)/(d.rate-m.due), float64(d.credit)/d.rate)
			if !d.wasFrozen { // isOver
				level = max(level, float64(s.allowance(m, 0)-s.windowUse(m, now))/d.rate)
			}
			until = min(until, max(now+time.Millisecond, d.thawedAt+50*time.Millisecond, now+time.Duration(level)))
		}
	}
	return until
}

// accountLimits adds time to what leases above their share may use.
func (s *Scheduler) accountLimits(from, to time.Duration) {
	for _, m := range s.free {
		d := &m.demand
		if d.class != limited {
			continue
		}
		gain := m.due
		if !m.frozen {
			gain -= d.rate
			d.credit = max(0, d.credit-time.Duration(d.rate*float64(to-from)))
		}
		d.level = min(max(d.level+time.Duration(gain*float64(to-from)), -longestDebt), 2*limitSize(m))
	}
}
