package control

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mps"
)

const (
	// faultLines is how many of the last lines of a log are searched for a fault.
	faultLines = 400
	// xidWindow is the time between a fault and the driver's report of it, whichever comes first.
	xidWindow = 10 * time.Second
	// suspectTime is how long a log is read after a report of the driver: the server may write later.
	suspectTime = 3 * time.Second
)

// faults is what is known of the faults of one control daemon.
type faults struct {
	line  string     // that named the last culprit
	last  *mps.Fault // nil before the first
	known bool       // line was read
	open  bool       // the server had the last fault at the last reading
	xid   uint64     // of the GPU, the last that the driver reported
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
func (s *Supervisor) noteFault(ctx context.Context, id mps.Device, f *faults, r *reading, had []int, suspected bool, now time.Time) {
	f.forgetLeft(now)
	had = slices.AppendSeq(slices.Clone(had), maps.Keys(f.left))
	over := len(had) > 0 && !slices.ContainsFunc(had, func(pid int) bool { return slices.Contains(r.clients, pid) })
	if !f.known || r.fault || over || suspected {
		line, culprit := mps.FaultIn(s.Units.LastLines(ctx, mps.UnitName(id), faultLines))
		f.note(r, had, line, culprit, now)
	}
	if f.last != nil && f.last.XID == 0 && f.xid != 0 && f.last.Since.Sub(f.xidAt).Abs() < xidWindow {
		f.last.XID = f.xid
	}
	if r.noStatus { // This version says nothing of it: a fault lasts until the clients of its time have ended.
		r.fault = f.open && len(f.last.Among(living(r.clients))) > 0
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
	f.open, f.last = true, &mps.Fault{Since: now}
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

// of is the last fault, with the clients that still run.
func (f *faults) of(r *reading, now time.Time) *mps.Fault {
	if f.last == nil {
		return nil
	}
	out := *f.last
	if r.fault {
		out.Stragglers, out.Stuck = out.Among(living(r.clients)), now.Sub(out.Since) >= mps.FaultTime
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
func (s *Supervisor) Reread(id mps.Device) { s.gpuState(id).reread.Store(true) }

// faultDue reports whether a server with a fault is to be read again: it may serve again.
func (w *gpuState) faultDue(now time.Time) bool {
	return w.reading.fault && now.Sub(w.read) >= retryGreeting
}
