package quota

import (
	"math"
	"slices"
	"time"
)

// Sample names the lease that ran on the GPU at one moment.
type Sample struct {
	Lease string        // empty: a process without a lease
	Time  time.Duration // on the scheduler's clock
}

// idleAfter is how much of a GPU's time a lease gets without a sample that names it until it counts as idle: a busy lease
// has about eleven samples in it.
const idleAfter = 1500 * time.Millisecond

// Observe adds the driver's utilisation samples since the last call; they are complete up to upTo. The scheduler learns from
// them how long each lease's queued work continues to run after a freeze, which leases are idle, and, with Config.Raw,
// whether the slices are used. Without any samples from the driver, do not call it: every backlog is then taken as zero and
// every lease as busy.
//
// Without Config.Raw the samples are the newest of each process, which is what drivers report. A sample from a freeze is
// replaced soon after the thaw, so Observe should be called when Action.ReadSamples is set.
func (s *Scheduler) Observe(now, upTo time.Duration, samples []Sample) {
	s.account(now)
	for _, x := range samples {
		if s.cfg.Raw {
			s.period.addSample(x.Time, s.cfg.SamplePeriod)
			s.fallback.addSample()
		}
		m := s.find(x.Lease)
		if m == nil {
			continue
		}
		m.busyAt = max(m.busyAt, x.Time)
		if !m.backlog.addSample(x.Time) && m.idle {
			m.idle, m.deficit = false, 0
		}
	}
	period := s.cfg.SamplePeriod
	if s.cfg.Raw {
		period = s.period.estimate(period)
	}
	for _, m := range s.members {
		if s.cfg.Raw {
			m.backlog.setCovered(upTo, true)
		} else {
			m.backlog.setCovered(s.last, false)
		}
		m.backlog.learn(upTo, period, s.cfg.Raw)
		if s.participates(m) && m.timeBetween(m.busyAt, upTo) > idleAfter {
			m.idle = true
		}
	}
	s.poolEstimates(period)
	s.updateWeights()
	if s.cfg.Fallback && s.cfg.Raw {
		s.fallback.evaluate(s.last, period)
	}
}

// backlogEstimate learns how long a lease's queued work continues to run after a freeze. Each sample that names the lease
// while it is frozen counts as one sample period of work.
type backlogEstimate struct {
	estimate  time.Duration    // used by the scheduler: own, moved towards the mean of all leases
	own       time.Duration    // from its own samples
	weight    float64          // number of freezes behind own
	open      []freezeInterval // not yet included, oldest first
	freezes   int
	hits      float64
	truncated int // freezes that may have ended before the work
	rounds    int // estimates so far
}

// freezeInterval is the time between a freeze and a thaw.
type freezeInterval struct {
	from, to  time.Duration // to is 0 while it lasts
	alone     time.Duration // no other lease ran until then; 0: none has run yet
	newest    time.Duration // the newest sample in it that names the lease; 0: none
	count     int           // samples in it that name the lease
	coveredTo time.Duration // time of the last query for samples
}

// hits is how many samples named the lease since it was frozen. When drivers report only the newest sample, the number is
// computed: while no other lease runs, every sample up to the newest names it, because the driver takes one every period and
// none of an idle GPU. While another runs, every second sample before the newest is assumed to name it.
func (f *freezeInterval) hits(period time.Duration, raw bool) float64 {
	if raw || f.newest == 0 {
		return float64(f.count)
	}
	n := math.Floor(float64(f.newest-f.from)/float64(period)) + 1
	if f.alone != 0 && f.newest > f.alone {
		overlap := min(n, math.Floor(float64(f.newest-f.alone)/float64(period))+1)
		n -= (overlap - 1) / 2
	}
	return n
}

// covered reports whether enough of an interval was observed to count its samples. It depends on when samples were queried,
// not on when they were taken, because that would favour some phases of the sampler and so some counts.
func (f *freezeInterval) covered(estimate, period time.Duration) bool {
	long := f.to - f.from
	return f.coveredTo-f.from >= max(min(2*estimate, long*9/10), min(long*6/10, 3*period))
}

func (d *backlogEstimate) froze(now time.Duration) {
	d.open = append(d.open, freezeInterval{from: now})
	if len(d.open) > 256 { // Observe is not called
		d.open = slices.Clone(d.open[128:])
	}
}

func (d *backlogEstimate) thawed(now time.Duration) {
	if n := len(d.open); n != 0 && d.open[n-1].to == 0 {
		d.open[n-1].to = now
	}
}

// contended records that from now on another lease runs next to the rest of the backlog.
func (d *backlogEstimate) contended(now time.Duration) {
	if n := len(d.open); n != 0 && d.open[n-1].to == 0 {
		d.open[n-1].alone = now
	}
}

// addSample records a sample that names the lease, and reports whether it was taken during a freeze.
func (d *backlogEstimate) addSample(at time.Duration) bool {
	for i := len(d.open) - 1; i >= 0; i-- {
		if f := &d.open[i]; at >= f.from {
			if f.to != 0 && at >= f.to {
				return false
			}
			f.newest = max(f.newest, at)
			f.count++
			return true
		}
	}
	return false
}

// setCovered records up to when samples are known: for every freeze with raw samples, else only for the current one.
func (d *backlogEstimate) setCovered(upTo time.Duration, raw bool) {
	for i := range d.open {
		f := &d.open[i]
		switch {
		case upTo < f.from:
		case f.to == 0 || upTo < f.to:
			f.coveredTo = upTo
		case raw:
			f.coveredTo = f.to
		}
	}
}

// learn includes the freezes that are covered. The first estimates have full weight, so that a new lease is known within
// seconds. Later ones change the estimate slowly, because each is uncertain by about half a sample period.
func (d *backlogEstimate) learn(upTo, period time.Duration, raw bool) {
	for len(d.open) != 0 && d.open[0].to != 0 && d.open[0].to <= upTo {
		if f := &d.open[0]; f.covered(d.estimate, period) {
			d.freezes++
			d.hits += f.hits(period, raw)
			if f.newest != 0 && f.newest > f.to-period {
				d.truncated++
			}
		}
		d.open = d.open[1:]
	}
	need := 10
	if d.rounds < 4 {
		need = 5
	}
	if d.freezes < need {
		return
	}
	d.rounds++
	now := time.Duration(float64(period) * d.hits / float64(d.freezes))
	if 2*d.truncated > d.freezes {
		now += period // it was thawed before its queue was empty: the backlog is longer than observed
	}
	if off := (now - d.own).Abs(); off > max(100*time.Millisecond, d.own/2) {
		d.rounds = min(d.rounds, 2) // more than noise: the load of the lease has changed
		d.weight = min(d.weight, float64(need))
	}
	gain := max(0.1, 1/float64(d.rounds))
	d.own += time.Duration(gain * float64(now-d.own))
	d.weight = min(d.weight+float64(d.freezes), 100)
	d.freezes, d.hits, d.truncated = 0, 0, 0
}

// variance is the uncertainty of own in s². A freeze has a whole number of samples, so it is wrong by a part of a period.
func (d *backlogEstimate) variance(period time.Duration) float64 {
	_, f := math.Modf(float64(d.own) / float64(period))
	return period.Seconds() * period.Seconds() * max(f*(1-f), 0.05) / d.weight
}

// poolEstimates sets the estimates of all leases. Differences between leases count only as far as they exceed the noise: an
// error that is equal for all leases does not change the shares, an error of one lease does. A lease without an estimate gets
// the mean for the same reason.
func (s *Scheduler) poolEstimates(period time.Duration) {
	var list, unknown []*backlogEstimate
	var mean float64
	for _, m := range s.members {
		switch {
		case !s.participates(m):
		case m.backlog.weight > 0:
			list = append(list, &m.backlog)
			mean += m.backlog.own.Seconds()
		default:
			unknown = append(unknown, &m.backlog)
		}
	}
	mean /= max(1, float64(len(list)))
	var spread, noise float64
	for _, d := range list {
		off := d.own.Seconds() - mean
		spread += off * off
		noise += d.variance(period)
	}
	noise *= 1 - 1/max(1, float64(len(list)))
	shrink := 0.0
	if spread > 0 {
		shrink = max(0, 1-2*noise/spread)
	}
	for _, d := range list {
		at := mean + shrink*(d.own.Seconds()-mean)
		d.estimate = min(time.Duration(at*float64(time.Second)), s.cfg.MaxFrozen*4/5)
	}
	for _, d := range unknown {
		d.estimate = min(time.Duration(mean*float64(time.Second)), s.cfg.MaxFrozen*4/5)
	}
}

// halve reduces the estimate, so that a lease that once left a long backlog is tried again.
func (d *backlogEstimate) halve() {
	d.estimate, d.own = d.estimate/2, d.own/2
	d.rounds, d.weight = 0, 0
}

// period learns the time between the driver's samples: the median gap. Gaps of more than twice the assumed period are
// ignored, because the driver takes no samples while the GPU is idle.
type period struct {
	last time.Duration
	gaps []time.Duration
}

func (p *period) addSample(at, assumed time.Duration) {
	if gap := at - p.last; gap > 0 {
		if gap <= 2*assumed {
			p.gaps = append(p.gaps, gap)
		}
		p.last = at
	}
	if len(p.gaps) > 144 {
		p.gaps = slices.Clone(p.gaps[72:])
	}
}

func (p *period) estimate(assumed time.Duration) time.Duration {
	if len(p.gaps) < 36 {
		return assumed
	}
	sorted := slices.Sorted(slices.Values(p.gaps))
	return max(sorted[len(sorted)/2], assumed/4)
}

// fallback checks whether the leases use their slices, and lets all run concurrently for a while when they do not.
type fallback struct {
	since     time.Duration
	sliceTime time.Duration // time of slices since then
	samples   int
	until     time.Duration // all run concurrently until this
	duration  time.Duration
	reason    string
	active    bool
}

func (f *fallback) addSliceTime(d time.Duration) { f.sliceTime += d }
func (f *fallback) addSample()                   { f.samples++ }

func (f *fallback) reset(now time.Duration) {
	*f = fallback{since: now}
}

// evaluate checks after every 30 s of slices whether the GPU was busy for at least 80 % of them.
func (f *fallback) evaluate(now, period time.Duration) {
	if f.sliceTime < 30*time.Second {
		return
	}
	busy := float64(f.samples) * float64(period) / float64(f.sliceTime)
	f.since, f.sliceTime, f.samples = now, 0, 0
	if busy < 0.8 {
		f.start(now, "all leases run concurrently for a while: they did not use their slices")
	}
}

// start lets all leases run concurrently, each time for longer, up to eight minutes.
func (f *fallback) start(now time.Duration, why string) {
	f.duration = min(max(2*f.duration, time.Minute), 8*time.Minute)
	f.until, f.reason, f.active = now+f.duration, why, true
}

// ended reports once that the concurrent time has ended.
func (f *fallback) ended(now time.Duration) bool {
	if !f.active || now < f.until {
		return false
	}
	f.active, f.since, f.sliceTime, f.samples = false, now, 0, 0
	return true
}
