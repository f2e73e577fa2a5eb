package quota

import (
	"fmt"
	"time"
)

// State says what is known of a share: whether its lease has it.
type State string

// The states of a share.
const (
	// Unmeasured: it is not known. Nothing is said of it.
	Unmeasured State = "unmeasured"
	// Met: the lease had at least what is due to it.
	Met State = "met"
	// Less: the lease had what it would use alone, and that is less than its share.
	Less State = "less"
	// Unmet: the lease had less than what is due to it, and would have used more.
	Unmet State = "unmet"
)

// Verdict is what is said of the share of one lease, wherever it is said. Parts are of the time of the GPU, 0…1.
type Verdict struct {
	State State
	Got   float64 // in the window that decided
	Due   float64 // in the same window: the share, or what the lease would use alone if that is less
	// Within is how much less than Due the lease may have had in a window of ten seconds for which Met or Less is said.
	Within float64
	Reason string // of Unmet: what keeps it from that; of Unmeasured: what is missing; of Less: what it does
}

// Window is what was observed of a lease over a time: what it used, what was due to it, and the standard error of the first, as parts of
// the time. A time without an observation is in none of them.
type Window struct {
	Known time.Duration
	Used  float64
	Due   float64
	Error float64
}

// Evidence is what Decide decides from. Parts are of the time of the GPU, 0…1.
type Evidence struct {
	Short, Long Window // the last ten seconds and the last minute, as the samples of processes say
	// Charged is the same of the last ten seconds as the slices were charged, with the exactness of that as Error; Known is 0 where that
	// says nothing of what was used.
	Charged Window
	// Missing says why there is no observation of now; empty: there is.
	Missing string
	// Inexact says why the samples are too few for a share to be said to be met; empty: they are not.
	Inexact string
	Exact   float64 // how exact shares are at best
	Alone   bool    // no other lease has the GPU open: what it does not use, it does not need
	Idle    bool    // it has no work
	// Need is what it would use alone, as far as it is known: at least and at most.
	NeedKnown        bool
	NeedLow, NeedTop float64
	Saturated        bool // next to the others it takes all that it can get
	Obstacle         string
	Usual            string // what keeps it from that if nothing else is known
}

const (
	// leastKnown is how much of ten seconds must have been observed before something is said of a share.
	leastKnown = 8 * time.Second
	// leastKnownLong is the same of the minute.
	leastKnownLong = 25 * time.Second
	// sureErrors is by how many standard errors of the samples a window must be below what is due to be less.
	sureErrors, sureErrorsLong = 1.75, 2.5
	// withinErrors is by how many it may be below without being seen.
	withinErrors = 4.25
)

// Decide decides what is said of a share.
func Decide(e *Evidence) Verdict {
	v := Verdict{State: Unmeasured, Got: e.Short.Used, Due: e.Short.Due}
	switch {
	case e.Missing != "":
		v.Reason = e.Missing
		return v
	case e.Short.Known < leastKnown:
		v.Reason = "it has been measured for less than ten seconds"
		return v
	case e.Short.Due == 0 && !e.Idle:
		v.Reason = "it has no part of the time now"
		return v
	}
	v.Within = max(e.Exact, withinErrors*e.Short.Error)
	near := e.Short
	agrees := e.Charged.Used <= e.Short.Used+e.Short.Error // Else it did not use what it was charged.
	if e.Charged.Known >= leastKnown && e.Charged.Error < v.Within && agrees {
		v.Within, near = e.Charged.Error, e.Charged
		v.Got, v.Due = near.Used, near.Due
	}
	margin := max(e.Exact, sureErrors*near.Error)
	if near == e.Charged {
		margin = near.Error
	}
	switch {
	case e.Idle || e.Alone:
		v.State, v.Due, v.Reason = Less, min(v.Due, v.Got), "it needs no more"
		if e.Idle {
			v.Reason = "it does nothing"
		}
	case near.has(margin):
		v.State = Met
		if sure := max(1.5*e.Exact, sureErrorsLong*e.Long.Error); e.Long.Known >= leastKnownLong && !e.Long.has(sure) {
			v = e.below(v, e.Long, sure)
		}
	default:
		v = e.below(v, near, margin)
	}
	if e.Inexact != "" && (v.State == Met || v.State == Less && !e.Alone) {
		v.State, v.Reason = Unmeasured, e.Inexact
	}
	return v
}

// has reports whether a window has what is due, within a margin.
func (w *Window) has(margin float64) bool { return w.Used >= w.Due-margin }

// below decides of a lease that had less than its share.
func (e *Evidence) below(v Verdict, w Window, margin float64) Verdict {
	v.Got, v.Due, v.State = w.Used, w.Due, Unmet
	switch {
	case e.Obstacle != "":
		v.Reason = e.Obstacle
	case e.Saturated:
		v.Reason = e.Usual
	case !e.NeedKnown:
		v.State, v.Reason = Unmeasured, "it uses less than its share: whether it would use more alone was not measured"
	case min(w.Due, e.NeedTop) <= w.Used+margin:
		v.State, v.Due = Less, min(w.Due, e.NeedTop)
		v.Reason = fmt.Sprintf("alone it would use about %.0f%%", 100*e.NeedTop)
	case min(w.Due, e.NeedLow) > w.Used+margin:
		v.Due = min(w.Due, e.NeedLow)
		v.Reason = e.Usual
	default:
		v.State = Unmeasured
		v.Reason = fmt.Sprintf("it uses less than its share: alone it would use between %.0f and %.0f%%", 100*e.NeedLow, 100*e.NeedTop)
	}
	return v
}
