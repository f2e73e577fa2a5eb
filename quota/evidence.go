package quota

import (
	"fmt"
	"slices"
	"time"
)

// Verdict decides what is said of the share of a lease now.
func (s *Scheduler) Verdict(now time.Duration, lease string) Verdict {
	s.account(now)
	s.refresh()
	m := s.find(lease)
	if m == nil {
		return Verdict{State: Unmeasured, Reason: "it has no part of the time now"}
	}
	e := Evidence{
		Short:   m.windows.over(recentWindow, s),
		Long:    m.windows.over(longWindow, s),
		Exact:   s.exact() / 100,
		Missing: s.missingEvidence(m),
		Inexact: s.inexact(),
		Usual:   s.usual(m),
	}
	if s.phase == concurrent && s.fallsBack() {
		e.Obstacle = s.fallback.reason
	}
	last := m.windows.last()
	e.Alone, e.Idle = len(last) > 0, len(last) > 0
	for i := range last {
		e.Alone, e.Idle = e.Alone && last[i].alone, e.Idle && last[i].idle
	}
	s.needs(m, &e)
	s.charged(m, &e)
	return Decide(&e)
}

// missingEvidence says why nothing can be said of the share of a lease now.
func (s *Scheduler) missingEvidence(m *member) string {
	list := m.windows.list
	last := m.joined
	if n := len(list); n != 0 {
		last = list[n-1].to
	}
	switch {
	case s.last-last > 2*sensorTimeout:
		return "the driver does not say which processes use the GPU"
	case s.samplePeriod() == 0 && s.hasSeries():
		return "how often the driver samples is not known yet"
	case s.last-s.joined < learnsFor && len(s.in)+len(s.free) > 1:
		return "a lease came less than 20 s ago"
	}
	return ""
}

// inexact says why the samples are too few, or show too little, for a share to be said to be met.
func (s *Scheduler) inexact() string {
	switch {
	case s.slow():
		return SlowSamplerText(s.samplePeriod(), s.exact())
	case s.hasSeries() && !s.sampledLately():
		return "the driver has no samples: no process seems to use the GPU"
	case !s.hasSeries() && !s.allBusy():
		return "the driver does not report the utilisation of the GPU over time: time in which it is idle is not seen"
	}
	return ""
}

// sampledLately reports whether there is a sample of the last ten seconds. A GPU without work has none, and neither has a driver that
// does not answer any more.
func (s *Scheduler) sampledLately() bool {
	return slices.ContainsFunc(s.tracks, func(t *track) bool { return t.ends > s.last-recentWindow })
}

// SlowSamplerText says how exact shares are where the driver samples a GPU seldom.
func SlowSamplerText(period time.Duration, exact float64) string {
	return fmt.Sprintf(
		"the driver samples this GPU every %.1f s: shares are exact to about ±%.0f points over 10 s",
		period.Seconds(),
		exact,
	)
}

// needs says what a lease would use alone, and whether it takes all that it can get.
func (s *Scheduler) needs(m *member, e *Evidence) {
	var used, thawed, nextTo, length float64
	for _, o := range m.windows.list {
		used, thawed, nextTo, length = used+o.used, thawed+o.thawed, nextTo+o.nextTo*(o.to-o.from).Seconds(), length+(o.to-o.from).Seconds()
	}
	if length == 0 || thawed == 0 {
		return
	}
	nextTo /= length
	rate := used / thawed
	e.Saturated = rate >= takesAll/(1+nextTo)*m.processCount()
	if !s.runsFree(m) {
		if m.own.n >= 4 {
			need := 1 - m.own.usual()
			e.NeedKnown, e.NeedLow, e.NeedTop = need >= max(noWork, e.Long.Used-e.Long.Error), need, need
		}
		return
	}
	w := &m.windows
	if !w.needKnown || s.last-w.needAt > needAge || w.need < noWork {
		return // It had no work then.
	}
	off := e.Long.Error * length / thawed
	e.NeedKnown = true
	e.NeedLow = min(alone(max(0, rate-off), nextTo), w.need)
	e.NeedTop = max(alone(rate+off, nextTo), w.need)
}

// allBusy reports whether each lease with work takes all that it can get in its slices. Without the series nothing else shows that the
// GPU is not idle.
func (s *Scheduler) allBusy() bool {
	if len(s.free) > 0 || len(s.in) == 0 {
		return false
	}
	return !slices.ContainsFunc(s.in, func(m *member) bool {
		var used, thawed float64
		for _, o := range m.windows.last() {
			used, thawed = used+o.used, thawed+o.thawed
		}
		return used < takesAll*thawed
	})
}

// alone is what a lease would use alone that uses a part of the time next to processes that always have work, if each gets equal turns: it
// has work for that part times the number of all processes, and waits for its host for the rest of the time.
func alone(used, nextTo float64) float64 {
	host := 1 - used*(1+nextTo)
	if host <= 0 {
		return 1
	}
	return used / (used + host)
}

// charged adds what the slices of a lease were charged, up to the last samples of the series.
func (s *Scheduler) charged(m *member, e *Evidence) {
	to := s.last - chargedAfter
	for _, t := range m.tracks {
		to = min(to, t.upTo)
	}
	if to < s.last-sensorTimeout || max(m.windows.sliced, s.joined+recentWindow) > to-recentWindow || !s.charges(m) {
		return
	}
	var outside, length float64 // seconds
	for _, o := range m.windows.last() {
		outside, length = outside+o.outside, length+(o.to-o.from).Seconds()
	}
	off := 0.0
	if outside > 0 {
		off = 2 * s.sampleSeconds(outside/length, recentWindow) / recentWindow.Seconds()
	}
	e.Charged = Window{
		Known: recentWindow,
		Used:  m.usage.recent(to, recentWindow) * (1 - m.own.usual()) * (1 - outside/max(length, 1)),
		Due:   e.Short.Due,
		Error: 3*e.Exact + s.uncharged() + off,
	}
}

// uncharged is by how much what is charged in ten seconds may differ from what was used: work that runs on into the next slice is
// charged by its mean, and what runs next to the slices by the samples.
func (s *Scheduler) uncharged() float64 {
	var longest time.Duration
	for _, m := range s.in {
		longest = max(longest, m.backlog.longest(), m.backlog.mean)
	}
	out := 4 * float64(longest) / float64(recentWindow)
	for _, m := range s.free {
		out += 2 * m.windows.over(recentWindow, s).Error
	}
	return out
}

// usual is what keeps it from that of a share if nothing else is known.
func (s *Scheduler) usual(m *member) string {
	w := &m.windows
	if len(w.list) == 0 {
		return ""
	}
	o := &w.list[len(w.list)-1]
	switch {
	case m.demand.class == limited && o.free:
		return "it had used more than its share, and pays that back"
	case o.outside > (o.to-o.from).Seconds()/50:
		return "processes in no lease use the GPU too"
	case o.free && o.nextTo > 1.5:
		return fmt.Sprintf("it runs next to about %.0f processes of others, and the GPU divides its time by processes", o.nextTo)
	case o.free:
		return "next to the others all that it does takes longer"
	case s.clearing.part > 0:
		return "it waits for a lease that runs next to the others, which has the time of its share for itself"
	case m.own.usual() >= leastIdle:
		return "it leaves its own slices idle, and the others do not wait for it"
	case m.backlog.mean >= inexactMean || slices.ContainsFunc(s.in, func(x *member) bool { return x.backlog.mean >= inexactMean }):
		return "queued work runs on after each slice for so long that slices are not exact"
	}
	return "its slices were shorter than its share for a while"
}
