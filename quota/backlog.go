package quota

import (
	"math"
	"slices"
	"time"
)

// Sample names the lease that was on the GPU at one moment.
type Sample struct {
	Lease string        // empty: somebody who is no lease here
	Time  time.Duration // on the scheduler's clock
}

// idleAfter is how much of a GPU's time a lease gets without one sample that names it until it is taken to do nothing:
// about eleven samples of a busy one.
const idleAfter = 1500 * time.Millisecond

// Observe feeds the driver's utilisation samples that came since the last call, and says up to when they are complete.
// It learns from them how long each lease's queued work runs on after a freeze, who does nothing, and, with Config.Raw,
// whether the slices are filled. When the driver has no samples to give at all, do not call it: the scheduler then takes
// drains as zero and everybody as busy.
//
// Without Config.Raw the samples are the newest of each process, which is what drivers answer. What one of them tells of a
// freeze is lost once the lease was thawed, so that calls pay when Action.Look asks for them.
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

// backlogEstimate learns how long a lease's queued work runs on after a freeze, from the samples that name it while it is
// frozen: each stands for one sample period of work.
type backlogEstimate struct {
	estimate  time.Duration    // what is waited for: seen, drawn towards the others'
	own       time.Duration    // from its own samples
	weight    float64          // how many freezes seen stands for
	open      []freezeInterval // not yet folded in, oldest first
	freezes   int
	hits      float64
	truncated int // freezes at whose end the work may still have run
	rounds    int // estimates so far
}

// freezeInterval is one time of being frozen.
type freezeInterval struct {
	from, to  time.Duration // to is 0 while it lasts
	alone     time.Duration // until then no other lease ran; 0: still
	newest    time.Duration // the newest sample in it that names the lease; 0: none
	count     int           // samples in it that name the lease
	coveredTo time.Duration // samples were asked for then
}

// hits is how many samples named the lease since it was frozen. Drivers that answer only the newest leave it to
// reckoning: while no other runs, all up to the newest did, because the driver takes one every period and none of an
// idle GPU; beside another, of those before the newest every second one did.
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

// covered tells whether enough of a span was seen to count what ran in it. It goes by when samples were asked for, never by
// when they were taken: that would favour some phases of the sampler, and with them some counts.
func (f *freezeInterval) covered(estimate, period time.Duration) bool {
	long := f.to - f.from
	return f.coveredTo-f.from >= max(min(2*estimate, long*9/10), min(long*6/10, 3*period))
}

func (d *backlogEstimate) froze(now time.Duration) {
	d.open = append(d.open, freezeInterval{from: now})
	if len(d.open) > 256 { // nobody feeds samples
		d.open = slices.Clone(d.open[128:])
	}
}

func (d *backlogEstimate) thawed(now time.Duration) {
	if n := len(d.open); n != 0 && d.open[n-1].to == 0 {
		d.open[n-1].to = now
	}
}

// contended notes that from now on another lease runs beside what is left of the queue.
func (d *backlogEstimate) contended(now time.Duration) {
	if n := len(d.open); n != 0 && d.open[n-1].to == 0 {
		d.open[n-1].alone = now
	}
}

// addSample notes a sample that names the lease, and tells whether it fell into a freeze.
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

// setCovered notes up to when samples are known: of every freeze when they come one by one, else only of the present one.
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

// learn folds in the freezes that were seen whole. The first estimates count fully, so that a new lease is understood
// within seconds; later ones move the reserve slowly, because each is uncertain by half a sample period or so.
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
		now += period // it was thawed before its queue was empty: there is more than was seen
	}
	if off := (now - d.own).Abs(); off > max(100*time.Millisecond, d.own/2) {
		d.rounds = min(d.rounds, 2) // no noise explains that: the lease does something else now
		d.weight = min(d.weight, float64(need))
	}
	gain := max(0.1, 1/float64(d.rounds))
	d.own += time.Duration(gain * float64(now-d.own))
	d.weight = min(d.weight+float64(d.freezes), 100)
	d.freezes, d.hits, d.truncated = 0, 0, 0
}

// variance is how uncertain seen is, in s²: each freeze tells whole samples, so that it is off by the part of a period.
func (d *backlogEstimate) variance(period time.Duration) float64 {
	_, f := math.Modf(float64(d.own) / float64(period))
	return period.Seconds() * period.Seconds() * max(f*(1-f), 0.05) / d.weight
}

// poolEstimates sets the reserves. What the leases' estimates differ by is believed only as far as it exceeds their noise: a
// reserve that is wrong for all alike does not change the shares, one that is wrong for one of them does. So one that is
// not known yet is taken to be like the others.
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

// halve forgets part of the reserve, so that a lease that once left deep queues is tried again.
func (d *backlogEstimate) halve() {
	d.estimate, d.own = d.estimate/2, d.own/2
	d.rounds, d.weight = 0, 0
}

// period learns the time between the driver's samples: the median gap. Gaps of more than twice what is assumed are left
// out, because the driver takes no sample while the GPU is idle.
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

// fallback watches whether the slices are filled, and holds the time of running side by side when not.
type fallback struct {
	since     time.Duration
	sliceTime time.Duration // slice time since then
	samples   int
	until     time.Duration // side by side until this
	duration  time.Duration
	reason    string
	active    bool
}

func (f *fallback) addSliceTime(d time.Duration) { f.sliceTime += d }
func (f *fallback) addSample()                   { f.samples++ }

func (f *fallback) reset(now time.Duration) {
	*f = fallback{since: now}
}

// evaluate looks every 30 s of slices whether at least 80 % of them was busy.
func (f *fallback) evaluate(now, period time.Duration) {
	if f.sliceTime < 30*time.Second {
		return
	}
	busy := float64(f.samples) * float64(period) / float64(f.sliceTime)
	f.since, f.sliceTime, f.samples = now, 0, 0
	if busy < 0.8 {
		f.start(now, "all run side by side for a while: the slices were not filled")
	}
}

// start lets all run side by side, each time for longer, up to eight minutes.
func (f *fallback) start(now time.Duration, why string) {
	f.duration = min(max(2*f.duration, time.Minute), 8*time.Minute)
	f.until, f.reason, f.active = now+f.duration, why, true
}

// ended tells once that a time of running side by side has ended.
func (f *fallback) ended(now time.Duration) bool {
	if !f.active || now < f.until {
		return false
	}
	f.active, f.since, f.sliceTime, f.samples = false, now, 0, 0
	return true
}
