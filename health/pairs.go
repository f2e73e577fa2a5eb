package health

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Report is one report of an XID. The driver's events have the instance, and the kernel's log has the process.
type Report struct {
	GPU     gpu.UUID
	XID     uint64
	At      time.Time
	FromLog bool
	PID     int    // that caused it; 0: not known
	Name    string // of the process, as the driver wrote it
	GI      *uint32
	CI      *uint32 // of the instance
	Counted bool    // it was returned before, without the process
}

const (
	// pairWithin is the longest time between the two reports of one XID.
	pairWithin = 5 * time.Second
	// awaitLog is how long the report of an event waits for the line of the log, which has the process.
	awaitLog = time.Second
	// mostPending limits the reports that wait for their pair: more are taken as errors of their own.
	mostPending = 256
)

// Pairs joins the two reports of each XID, so that it is counted once. The zero value works.
type Pairs struct {
	WithoutLog bool     // the log cannot be read: no report waits for it
	events     []Report // that wait for their line of the log
	lines      []Report // that were returned, and whose event may follow
	returned   []Report // events that were returned, and whose line may follow
}

// Add takes a report, and returns those that are complete.
func (p *Pairs) Add(r Report) []Report {
	out := p.Due(r.At)
	same := func(o Report) bool {
		return o.GPU == r.GPU && o.XID == r.XID && r.At.Sub(o.At) < pairWithin
	}
	if !r.FromLog {
		if i := slices.IndexFunc(p.lines, same); i >= 0 {
			p.lines = slices.Delete(p.lines, i, i+1)
			return out
		}
		if p.WithoutLog || len(p.events) >= mostPending {
			return append(out, r)
		}
		p.events = append(p.events, r)
		return out
	}
	if i := slices.IndexFunc(p.events, same); i >= 0 {
		if r.GI == nil {
			r.GI, r.CI = p.events[i].GI, p.events[i].CI
		}
		p.events = slices.Delete(p.events, i, i+1)
		return append(out, r)
	}
	if i := slices.IndexFunc(p.returned, same); i >= 0 {
		p.returned = slices.Delete(p.returned, i, i+1)
		r.Counted = true
		return append(out, r)
	}
	if len(p.lines) < mostPending {
		p.lines = append(p.lines, r)
	}
	return append(out, r)
}

// Due returns the events whose line of the log did not come in time.
func (p *Pairs) Due(now time.Time) (out []Report) {
	old := func(r Report) bool { return now.Sub(r.At) >= pairWithin }
	p.lines, p.returned = slices.DeleteFunc(p.lines, old), slices.DeleteFunc(p.returned, old)
	p.events = slices.DeleteFunc(p.events, func(r Report) bool {
		due := p.WithoutLog || now.Sub(r.At) >= awaitLog
		if due {
			out = append(out, r)
		}
		return due
	})
	if !p.WithoutLog {
		p.returned = append(p.returned, out...)
	}
	return out
}

// Next is the time until an event is due; false if none waits.
func (p *Pairs) Next(now time.Time) (time.Duration, bool) {
	if len(p.events) == 0 {
		return 0, false
	}
	return max(0, p.events[0].At.Add(awaitLog).Sub(now)), true
}
