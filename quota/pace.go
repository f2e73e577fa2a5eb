package quota

import "time"

// SamplesEvery is the time between two queries for the utilisation of a GPU, and the shortest between two for that of its processes.
const SamplesEvery = time.Second

// BusyEvery is the time between two queries for the utilisation of processes where only the account and status need it. The driver keeps
// ten seconds of it.
const BusyEvery = 5 * time.Second

// processesSeldom is the same while leases are charged by the series.
const processesSeldom = 2 * time.Second

// firstSamples is for how long a lease that is alone is measured more often, so that status soon shows what it uses.
const firstSamples = 4 * time.Second

// SeriesDue reports whether the driver is to be asked for the utilisation of the GPU now. There is nothing to decide for a lease that is
// alone, but for its cap; when no sample names it the series shows whether it does nothing, or its samples are missing.
func (s *Scheduler) SeriesDue(now time.Duration) bool {
	return s.shared() || s.sensors.nameless && s.ProcessesDue(now, s.sensors.answered)
}

// shared reports whether the time of the GPU is divided.
func (s *Scheduler) shared() bool {
	n := 0
	for _, m := range s.members {
		if m.Cap != nil && !m.removed {
			return true
		}
		if !m.removed {
			n++
		}
	}
	return n > 1
}

// ProcessesDue reports whether the driver is to be asked for the utilisation of the processes now; 0 for the time of the query before if
// there was none. How often that is belongs to the rule: what leases use is seen so late.
func (s *Scheduler) ProcessesDue(now, before time.Duration) bool {
	return before == 0 || now-before > s.processesEvery()-SamplesEvery/2
}

// processesEvery is the time between two queries for the utilisation of the processes. Each second they are needed while a lease runs next
// to others, because only they show what it uses; while a lease is idle, because only they show that it has work again; without a usable
// series; and at first. Leases that have slices are charged by the series.
func (s *Scheduler) processesEvery() time.Duration {
	if !s.shared() {
		if s.sensors.processAt >= s.joined+firstSamples {
			return BusyEvery
		}
		return processesSeldom
	}
	if s.sensors.seriesAt == 0 || !s.hasSeries() || len(s.free) > 0 {
		return SamplesEvery
	}
	for _, m := range s.members {
		if m.own.idle || s.last < m.demand.since+shareWindow {
			return SamplesEvery
		}
	}
	return processesSeldom
}
