package quota

import (
	"math"
	"time"
)

// A lease just below its share is above it in some windows of ten seconds by what the samples say, because each of them names one process.
// What it used in the minute before decides how surprising such a window is.

const (
	// usualLeast is how long it must have run, up to shareWindow ago, until what it uses usually is known.
	usualLeast = 25 * time.Second
	// usualErrors is by how many standard errors of the samples that must be less than what is due.
	usualErrors = 1.0
	// overUsual is how many of shareWindow it must then have used more than that.
	overUsual = 1.75
	// likelier is how much more likely the samples must be with all that it can get than with what it uses usually.
	likelier = 100
)

// usually is the part of the time that a lease used while it ran, in the minute before shareWindow; not known of a new one.
func (s *Scheduler) usually(m *member) (part float64, thawed time.Duration, known bool) {
	used := m.demand.past.used
	thawed = seconds(m.demand.past.thawed)
	for i := range m.demand.rows {
		a := &m.demand.rows[i]
		if a.to > s.last-shareWindow {
			break
		}
		used, thawed = used+a.used, thawed+a.thawed
	}
	if thawed < usualLeast {
		return 0, thawed, false
	}
	return used / thawed.Seconds(), thawed, true
}

// isModerate reports whether a lease usually uses less than what is due to it.
func (s *Scheduler) isModerate(m *member) bool {
	part, thawed, known := s.usually(m)
	return known && !s.slow() && part < m.due-usualErrors*s.sampleSeconds(m.due, thawed)/thawed.Seconds()
}

// likely reports whether what the samples of a time say is likely of a lease that takes all that it can get, and not of one that uses what
// it uses usually.
func (s *Scheduler) likely(m *member, all, used float64, length time.Duration) bool {
	usual, _, known := s.usually(m)
	switch {
	case known:
	case s.hasSeries():
		return true
	default:
		usual = m.due // What a new lease does is less certain.
	}
	usual, all = min(max(usual, 0.02), m.due, 0.98), min(all, 0.98)
	named := used / s.usualPeriod().Seconds()
	others := length.Seconds()/s.usualPeriod().Seconds() - named
	return named*math.Log(all/usual)+others*math.Log((1-all)/(1-usual)) >= math.Log(likelier)
}

// past is what the answers that are not kept any more said: the older, the less they count.
type past struct{ used, thawed float64 } // seconds

// pastFor is after how long an answer counts for a third.
const pastFor = 40 * time.Second

func (p *past) add(a *row) {
	kept := math.Exp(-(a.to - a.from).Seconds() / pastFor.Seconds())
	p.used, p.thawed = p.used*kept+a.used, p.thawed*kept+a.thawed.Seconds()
}
