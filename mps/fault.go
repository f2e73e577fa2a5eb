package mps

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is a fatal fault of a server. Every client of that time has lost its context.
type Fault struct {
	// Since is when it was seen; the same for one fault.
	Since time.Time `json:"since"`
	// Culprit is the client that the server's log names; 0 if it names none.
	Culprit int `json:"culprit,omitempty"`
	// Victims are the pids of the other clients, ascending.
	Victims []int `json:"victims,omitempty"`
	// Stragglers are the clients that still run, the culprit among them. No client joins until they have ended.
	Stragglers []int `json:"stragglers,omitempty"`
}

// faultLines is how many of the last lines of a log are searched for a fault.
const faultLines = 400

// faultText is the line that names the culprit, in server.log of 580 and as a string in other versions.
var faultText = regexp.MustCompile(`Client \{PID: ([0-9]+), Context ID: [0-9]+\} encountered a fatal GPU error`)

// faultIn returns the last line of a log that names a culprit, and the culprit; 0 if none does.
func faultIn(lines []string) (line string, pid int) {
	for _, l := range slices.Backward(lines) {
		if m := faultText.FindStringSubmatch(l); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil && n > 0 {
				return l, n
			}
		}
	}
	return "", 0
}

// faults is what is known of the faults of one control daemon.
type faults struct {
	line  string // that named the last culprit
	last  *Fault // nil before the first
	known bool   // line was read
}

// noteFault completes a fault after a reading. had are the clients of the reading before. The log is read when a server has a fault,
// and when all clients have ended, because then it may be over already.
func (s *Supervisor) noteFault(ctx context.Context, id Device, f *faults, r *reading, had []int, now time.Time) {
	over := len(had) > 0 && !slices.ContainsFunc(had, func(pid int) bool { return slices.Contains(r.clients, pid) })
	if f.known && !r.fault && !over {
		return
	}
	line, culprit := faultIn(s.Units.LastLines(ctx, UnitName(id), faultLines))
	isNew := line != f.line && culprit != 0
	first := !f.known
	f.line, f.known = line, true
	switch {
	case first && !r.fault: // Of a former run, and over.
		return
	case isNew, r.fault && (f.last == nil || len(f.last.Stragglers) == 0):
	default:
		return
	}
	f.last = &Fault{Since: now, Culprit: culprit}
	if !isNew {
		f.last.Culprit = 0 // The line is that of another fault.
	}
	all := slices.Concat(had, r.clients)
	slices.Sort(all)
	for _, pid := range slices.Compact(all) {
		if pid != f.last.Culprit {
			f.last.Victims = append(f.last.Victims, pid)
		}
	}
}

// of is the last fault, with the clients that still run.
func (f *faults) of(r *reading) *Fault {
	if f.last == nil {
		return nil
	}
	f.last.Stragglers = nil
	if r.fault {
		f.last.Stragglers = living(r.clients)
	}
	out := *f.last
	return &out
}

// Suspect makes the next observation of a GPU read at once whether its server has a fault: the driver reported an error.
func (s *Supervisor) Suspect(id Device) { s.gpuState(id).suspect.Store(true) }

// faultDue reports whether a server with a fault is to be read again: it may serve again.
func (w *gpuState) faultDue(now time.Time) bool {
	return w.reading.fault && now.Sub(w.read) >= retryGreeting
}

// reason says why no client can join.
func (f *Fault) reason() string {
	culprit, run := "", ""
	if f != nil && f.Culprit != 0 {
		culprit = fmt.Sprintf(" of pid %d", f.Culprit)
	}
	if f != nil && len(f.Stragglers) > 0 {
		run = ", and these run: " + strings.Trim(fmt.Sprint(f.Stragglers), "[]")
	}
	return "its server has a fatal fault" + culprit + ": no new client can join until all of its clients have ended" + run
}
