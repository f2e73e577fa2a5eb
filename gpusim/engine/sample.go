package engine

import (
	"slices"
	"time"
)

// Sample is one row of the utilisation by process: it names one process.
type Sample struct {
	PID  int
	Time uint64 // µs, on the clock of the samples
	SM   int    // percent of the period in which anything ran, rounded down, 1…100
}

// SeriesSample is the utilisation of one period, whichever process ran.
type SeriesSample struct {
	Time    uint64 // µs, on the clock of the samples: the end of the period
	Percent int    // of the period in which anything ran, rounded down, 0…100
}

// sampler is the two rings and the current period.
type sampler struct {
	o      Sampling
	random random
	start  time.Duration // of this period
	next   time.Duration // its end
	busy   time.Duration // duration in this period in which anything ran
	active []*account    // the accounts that ran in this period
	total  float64       // ns of work in this period
	last   []part        // who ran last in this period; only with NameLast
	latest time.Duration // the end of the last period that has a sample in the series
	rows   ring[Sample]
	series ring[SeriesSample]
}

// part is one account with its weight in a choice.
type part struct {
	account *account
	weight  float64
}

// newSampler returns a sampler whose first period starts now.
func newSampler(o Sampling) sampler {
	s := sampler{
		o:      o.withDefaults(),
		random: newRandom(o.Seed),
		latest: -1,
		rows:   ring[Sample]{most: RingSize},
		series: ring[SeriesSample]{most: SeriesSize},
	}
	s.next = s.length()
	if o.Seed != 0 {
		s.next = max(time.Duration(s.random.float()*float64(s.next)), 1)
	}
	return s
}

// length returns the length of the next period.
func (s *sampler) length() time.Duration {
	if s.o.Jitter == 0 {
		return s.o.Period
	}
	return time.Duration(float64(s.o.Period) * (1 + s.o.Jitter*(2*s.random.float()-1)))
}

// add charges work to an account.
func (s *sampler) add(a *account, work float64) {
	if work <= 0 {
		return
	}
	if a.period == 0 {
		s.active = append(s.active, a)
	}
	a.period += work
	a.busy += work
	s.total += work
}

// namedLocked returns the account that the row of this period names; nil for none.
func (e *Engine) namedLocked() *account {
	s := &e.sampler
	switch {
	case s.o.Naming == NamePeriod:
		return s.active[s.random.choose(len(s.active), func(i int) float64 { return s.active[i].period })]
	case len(e.active) > 0: // the other two agree: who runs now ran last
		return e.active[s.random.choose(len(e.active), func(i int) float64 { return e.active[i].rate })].acct
	case s.o.Naming == NameLast:
		return s.last[s.random.choose(len(s.last), func(i int) float64 { return s.last[i].weight })].account
	}
	return nil
}

// tickLocked ends a period: if anything ran, it adds one row and one sample. So the rings of an idle GPU keep their
// samples, including those of ended processes.
func (e *Engine) tickLocked() {
	s := &e.sampler
	stamp := e.stamp(s.next)
	percent := int(100 * s.busy / (s.next - s.start))
	if len(s.active) > 0 || s.o.ZeroWhenIdle {
		s.series.put(SeriesSample{Time: stamp, Percent: percent})
		s.latest = s.next
	}
	if len(s.active) > 0 {
		// A row of 0 % is not listed.
		if a := e.namedLocked(); a != nil && percent > 0 {
			s.rows.put(Sample{PID: a.pid, Time: stamp, SM: percent})
		}
	}
	for _, a := range s.active {
		a.tick(s.start, s.next)
	}
	s.active, s.total, s.busy, s.last = s.active[:0], 0, 0, s.last[:0]
	s.start = s.next
	s.next += s.length()
	e.forgetLocked()
}

// skipLocked ends the periods up to a time in which nothing runs.
func (e *Engine) skipLocked(to time.Duration) {
	s := &e.sampler
	for s.next <= to {
		e.now = s.next
		e.tickLocked()
		if whole := (to - s.start).Truncate(s.o.Period); s.o.Jitter == 0 && !s.o.ZeroWhenIdle && whole > 0 {
			s.start += whole
			s.next = s.start + s.o.Period
		}
	}
	e.now = to
}

// stamp returns the time of a sample on the clock of the samples.
func (e *Engine) stamp(at time.Duration) uint64 {
	if e.sampler.o.Clock == SinceBoot {
		return uint64((e.sampler.o.Uptime + at).Microseconds())
	}
	return uint64(e.epoch.Add(at + e.jumped).UnixMicro())
}

// Samples returns the rows newer than since (µs on the clock of the samples), the oldest first; 0 for all of them.
func (e *Engine) Samples(since uint64) []Sample {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advanceLocked()
	return slices.DeleteFunc(slices.Clone(e.sampler.rows.list()), func(s Sample) bool { return s.Time <= since })
}

// Series returns the samples of the whole engine newer than since (µs on the clock of the samples), the oldest first; 0
// for all of them. It is empty when nothing ran.
func (e *Engine) Series(since uint64) []SeriesSample {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advanceLocked()
	return slices.DeleteFunc(slices.Clone(e.sampler.series.list()), func(s SeriesSample) bool { return s.Time <= since })
}

// Utilization returns the percentage of the last full sample period in which anything ran, 0…100.
func (e *Engine) Utilization() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advanceLocked()
	s := &e.sampler
	if s.latest != s.start {
		return 0
	}
	list := s.series.list()
	return list[len(list)-1].Percent
}
