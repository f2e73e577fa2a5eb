package control

import (
	"context"
	"strings"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
)

// Where tenants may change limits, the limits have to be compared whenever one of them was connected. Each query is lines in the
// daemon's log, so it is queried only then. What the daemon has written shows it: it writes a line for each connection before anything
// else, also when its log is silenced, and nothing without one (seen with the programs of 535.261.03 and 550.163.01). It serves one
// connection at a time, so while gpushare holds one no other is served, and the count does not change.
//
// The table of sockets would be a simpler source and has only the connections of the moment: of the commands of tenants, which last
// milliseconds, it has 0.02 % at an observation every 30 s (BenchmarkOtherClients).

// witness is what one control daemon has written, as far as it is known whose connections that was for.
type witness struct {
	follows bool   // tenants may change its limits, so the rest is needed
	written uint64 // bytes, in the last greeting; 0: not known
	cost    uint64 // bytes of one greeting, the fewest that were seen since it was measured; 0: not known
	// measuredAt is when cost was measured. One line that came too late makes it too small, and with that each greeting after it one of
	// others: it is measured again at intervals.
	measuredAt time.Time
	// since is what was queried since the last greeting, and before the same at its last time.
	since, before [queryKinds]exchange
	// others: another process may have been connected since the limits were read.
	others bool
}

// queryKind is what a query is about.
type queryKind int

const (
	limitsQuery queryKind = iota
	listsQuery
	clientsListQuery
	queryKinds
)

// exchange is a query with its answers, and what they cost.
type exchange struct {
	text string
	cost uint64 // bytes, from the greeting before it to the one after it
}

// lineBytes is less than any line of the log has: its time and its source alone are more.
const lineBytes = 32

// sameCost reports whether two costs differ by less than a line, which no connection does.
func sameCost(a, b uint64) bool { return max(a, b)-min(a, b) < lineBytes }

// greeted notes a greeting. written is 0 if it could not be read.
func (w *witness) greeted(written uint64) {
	delta, known := written-w.written, written != 0 && w.written != 0 && w.cost != 0
	queried := 0
	for q := range w.since {
		if w.since[q].text == "" {
			continue
		}
		queried++
		w.since[q].cost = delta
		// The same query with the same answers costs the same, so a connection of others meanwhile shows. It is not known of answers
		// that are new.
		switch same := known && w.since[q].text == w.before[q].text && sameCost(delta, w.before[q].cost); {
		case !same:
			w.others = true
		case queryKind(q) == limitsQuery:
			w.others = false
		}
		w.before[q], w.since[q] = w.since[q], exchange{}
	}
	switch {
	case !known || queried > 1:
		w.others = true
	case queried == 0:
		w.others = w.others || !sameCost(delta, w.cost)
		w.cost = min(w.cost, delta) // Others may have been connected when it was measured.
	}
	w.written = written
}

// awaited is what the daemon has written when all of its lines for the next greeting and the query before it are there, if no other
// process was connected; 0 if that is not known.
func (w *witness) awaited() uint64 {
	if w.written == 0 || w.cost == 0 {
		return 0
	}
	cost, queried := w.cost, 0
	for q := range w.since {
		switch {
		case w.since[q].text == "":
			continue
		case w.since[q].text != w.before[q].text:
			return 0
		}
		queried++
		cost = w.before[q].cost
	}
	if queried > 1 {
		return 0
	}
	return w.written + cost
}

// measureDue reports whether the cost of a greeting is to be measured, by a second one right after one that was noted.
func (w *witness) measureDue(now time.Time) bool {
	return w.written != 0 && (w.cost == 0 || now.Sub(w.measuredAt) >= limitsInterval)
}

// measured notes a second greeting right after another one.
func (w *witness) measured(written uint64, now time.Time) {
	if written != 0 && w.written != 0 {
		w.cost, w.measuredAt = written-w.written, now
	}
	w.written = written
}

// watched reports whether what a control daemon has written is to be followed: tenants may change its limits.
func (r *record) watched() bool { return r != nil && (r.AnyoneSets || r.AnyoneSetsServers) }

// greet greets a control daemon on the clients' socket, and looks whether others were connected.
func (s *Supervisor) greet(ctx context.Context, l layout, w *gpuState, rec *record) error {
	w.witness.follows = rec.watched()
	written, err := w.greetHeld(ctx, l)
	if err != nil || !w.witness.follows {
		return err
	}
	w.witness.greeted(written)
	if now := s.Now(); w.witness.measureDue(now) {
		if written, err = w.greetHeld(ctx, l); err == nil {
			w.witness.measured(written, now)
		}
	}
	return err
}

// query sends queries to a control daemon that was greeted.
func (s *Supervisor) query(w *gpuState, l layout, q queryKind, send func(c client) error) error {
	c := client{program: s.Control, pipeDir: l.pipe(), greeted: true}
	if !w.witness.follows {
		return send(c)
	}
	c.transcript = &strings.Builder{}
	err := send(c)
	w.witness.since[q].text += c.transcript.String()
	return err
}

// greetHeld is greetClients, and returns what the daemon had written while it greeted; 0 if that is not known.
func (w *gpuState) greetHeld(ctx context.Context, l layout) (written uint64, err error) {
	if !w.witness.follows || w.pid == 0 {
		return 0, greetClients(ctx, l.pipe(), nil)
	}
	err = greetClients(ctx, l.pipe(), func() { written = writtenBy(ctx, w.pid, w.witness.awaited()) })
	return written, err
}

const (
	steadyTime  = time.Millisecond // A thread of its own writes the log, late where the processors are busy.
	maxReadings = 200
)

// writtenBy returns the bytes that a process has written, when they stay the same for a moment and are not a line less than is awaited.
// Fewer are returned when no more came; 0 if they cannot be read, or do not stay the same.
func writtenBy(ctx context.Context, pid int, awaited uint64) uint64 {
	before, err := procfs.Written(pid)
	steady := false
	for range maxReadings {
		if err != nil || !loop.Pause(ctx, steadyTime) {
			return 0
		}
		var now uint64
		now, err = procfs.Written(pid)
		steady = now == before
		if before = now; steady && now+lineBytes > awaited {
			return now
		}
	}
	if err != nil || !steady {
		return 0
	}
	return before
}
