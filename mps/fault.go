package mps

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Fault is a fatal fault of a server. Every client of that time has lost its context.
type Fault struct {
	// Since is when it was seen; the same for one fault.
	Since time.Time `json:"since"`
	// XID is what the driver reported of the GPU around that time; 0 if it reported none.
	XID uint64 `json:"xid,omitempty"`
	// Culprit is the client that the server's log names; 0 if it names none.
	Culprit int `json:"culprit,omitempty"`
	// Victims are the pids of the other clients, ascending.
	Victims []int `json:"victims,omitempty"`
	// Stragglers are the clients that still run, the culprit among them. No client joins until they have ended.
	Stragglers []int `json:"stragglers,omitempty"`
	// Stuck: the server has the fault for longer than its clients take to end. Only a restart helps.
	Stuck bool `json:"stuck,omitempty"`
}

const (
	// faultLines is how many of the last lines of a log are searched for a fault.
	faultLines = 400
	// faultTime is how long a server may have a fault until it counts as stuck. Its clients are stopped well before.
	faultTime = 30 * time.Second
	// xidWindow is the time between a fault and the driver's report of it, whichever comes first.
	xidWindow = 10 * time.Second
	// suspectTime is how long a log is read after a report of the driver: the server may write later.
	suspectTime = 3 * time.Second
)

// faultText is the line that names the culprit. The first form is of server.log of 580 and of strings of other versions; the second is
// in the driver's library of 535.261.03 and 550.163.01.
var faultText = regexp.MustCompile(`Client (?:\{PID: ([0-9]+), Context ID: [0-9]+\}|process ([0-9]+)) encountered a fatal GPU error`)

// faultIn returns the last line of a log that names a culprit, and the culprit; 0 if none does.
func faultIn(lines []string) (line string, pid int) {
	for _, l := range slices.Backward(lines) {
		if m := faultText.FindStringSubmatch(l); m != nil {
			if n, err := strconv.Atoi(m[1] + m[2]); err == nil && n > 0 {
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
	open  bool   // the server had the last fault at the last reading
	xid   uint64 // of the GPU, the last that the driver reported
	xidAt time.Time
	left  map[int]time.Time // clients that were missing first in a reading of the clients alone, and when
}

// leftWindow is the time between the end of a client and the reading of the fault that ended it.
const leftWindow = 5 * time.Second

// ended notes the clients that are missing in a reading that does not look for faults.
func (f *faults) ended(had, clients []int, now time.Time) {
	for _, pid := range had {
		if !slices.Contains(clients, pid) {
			if f.left == nil {
				f.left = map[int]time.Time{}
			}
			f.left[pid] = now
		}
	}
	f.forgetLeft(now)
}

func (f *faults) forgetLeft(now time.Time) {
	maps.DeleteFunc(f.left, func(_ int, at time.Time) bool { return now.Sub(at) > leftWindow })
}

// noteFault completes a fault after a reading. had are the clients of the reading before. The log is read when a server has a fault or
// is suspected of one, and when all clients have ended, because then it may be over already.
func (s *Supervisor) noteFault(ctx context.Context, id Device, f *faults, r *reading, had []int, suspected bool, now time.Time) {
	f.forgetLeft(now)
	had = slices.AppendSeq(slices.Clone(had), maps.Keys(f.left))
	over := len(had) > 0 && !slices.ContainsFunc(had, func(pid int) bool { return slices.Contains(r.clients, pid) })
	if !f.known || r.fault || over || suspected {
		line, culprit := faultIn(s.Units.LastLines(ctx, UnitName(id), faultLines))
		f.note(r, had, line, culprit, now)
	}
	if f.last != nil && f.last.XID == 0 && f.xid != 0 && f.last.Since.Sub(f.xidAt).Abs() < xidWindow {
		f.last.XID = f.xid
	}
	if r.noStatus { // This version says nothing of it: a fault lasts until the clients of its time have ended.
		r.fault = f.open && len(f.last.among(living(r.clients))) > 0
	}
	f.open = r.fault
}

// note compares the log with what is known.
func (f *faults) note(r *reading, had []int, line string, culprit int, now time.Time) {
	isNew := culprit != 0 && line != f.line
	first := !f.known
	f.line, f.known = line, true
	switch {
	case first && !r.fault: // Of a former run, and over.
		return
	case isNew && f.open && f.last.Culprit == 0: // The log was later than the server.
		f.last.Culprit = culprit
		f.last.Victims = slices.DeleteFunc(slices.Clone(f.last.Victims), func(pid int) bool { return pid == culprit })
		return
	case !isNew && (!r.fault || f.open):
		return
	}
	f.open, f.last = true, &Fault{Since: now}
	if isNew { // Otherwise the line is that of another fault.
		f.last.Culprit = culprit
	}
	all := slices.Concat(had, r.clients)
	slices.Sort(all)
	for _, pid := range slices.Compact(all) {
		if pid != f.last.Culprit {
			f.last.Victims = append(f.last.Victims, pid)
		}
	}
}

// among returns those of the clients that the fault has reached.
func (f *Fault) among(clients []int) []int {
	return slices.DeleteFunc(clients, func(pid int) bool { return pid != f.Culprit && !slices.Contains(f.Victims, pid) })
}

// of is the last fault, with the clients that still run.
func (f *faults) of(r *reading, now time.Time) *Fault {
	if f.last == nil {
		return nil
	}
	out := *f.last
	if r.fault {
		out.Stragglers, out.Stuck = out.among(living(r.clients)), now.Sub(out.Since) >= faultTime
	}
	return &out
}

// Suspect makes the observations of a GPU and its instances in the next seconds read whether a server has a fault: the driver
// reported an error.
func (s *Supervisor) Suspect(id gpu.UUID, xid uint64) {
	now := s.Now()
	for _, w := range s.statesOn(id) {
		w.suspect.Store(&suspicion{xid: xid, at: now})
	}
}

// suspicion is an error of a GPU that may be the fault of a client.
type suspicion struct {
	xid  uint64
	at   time.Time
	next time.Time // of the next reading; zero: now
}

// statesOn are the states of a GPU and its instances.
func (s *Supervisor) statesOn(id gpu.UUID) []*gpuState {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*gpuState
	for d, w := range s.gpus {
		if d.GPU == id {
			out = append(out, w)
		}
	}
	return out
}

// suspected reports whether a reading is due by a suspicion, and when the next one is; zero: there is none. Observations may follow
// each other at once, and are not counted: the fault would come after the last reading.
func (w *gpuState) suspected(now time.Time) (due bool, next time.Time) {
	was := w.suspect.Load()
	if was == nil {
		return false, time.Time{}
	}
	if now.Before(was.next) {
		return false, was.next
	}
	w.faults.xid, w.faults.xidAt = was.xid, was.at
	var left *suspicion
	if now.Sub(was.at) < suspectTime {
		next = now.Add(retryGreeting)
		left = &suspicion{xid: was.xid, at: was.at, next: next}
	}
	w.suspect.CompareAndSwap(was, left) // A newer one stays.
	return true, next
}

// allEnded reports whether the clients of the last reading have all ended, which may be a fault.
func (w *gpuState) allEnded() bool {
	return len(w.reading.clients) > 0 && len(living(w.reading.clients)) == 0
}

// Reread makes the next observation of a device read its clients.
func (s *Supervisor) Reread(id Device) { s.gpuState(id).reread.Store(true) }

// faultDue reports whether a server with a fault is to be read again: it may serve again.
func (w *gpuState) faultDue(now time.Time) bool {
	return w.reading.fault && now.Sub(w.read) >= retryGreeting
}

// reason says why no client can join.
func (f *Fault) reason() string {
	culprit, run, how := "", "", ""
	if f != nil && f.Culprit != 0 {
		culprit = fmt.Sprintf(" of pid %d", f.Culprit)
	}
	if f != nil && f.XID != 0 {
		culprit += fmt.Sprintf(" (XID %d)", f.XID)
	}
	if f != nil && len(f.Stragglers) > 0 {
		run = ", and these run: " + strings.Trim(fmt.Sprint(f.Stragglers), "[]")
	}
	if f != nil && f.Stuck {
		how = fmt.Sprintf(" for more than %s", faultTime)
	}
	return "its server has a fatal fault" + culprit + how + ": no new client can join until all of its clients have ended" + run
}
