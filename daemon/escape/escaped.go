package escape

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// A process that leaves its lease is killed at once, without the SIGTERM that other processes get first. Outside of the
// lease neither device rules nor quotas apply to it, so a grace period would be time with an open GPU. It cannot be frozen
// first either, because its cgroup is not managed by gpushare. A job that no longer needs its lease has no reason to leave
// it: it can end.

// Escaped tracks the processes of all leases whose scope is managed by gpushare.
type Escaped struct {
	Wake loop.Wake // a lease ended: perhaps because its process left

	Since   time.Time               // when this daemon started
	startMu locks.Mutex[locks.Leaf] // protects started; no other lock is taken under it
	started []startedLease          // not tracked yet

	inside atomic.Pointer[insideList] // by the last pass

	mu         locks.Mutex[locks.EscapeScan] // protects the fields below; taken before startMu
	tracker    tracker
	leases     map[string]*lease.Lease // tracked leases, also after they ended
	startTimes map[string]startTime
	exempted   map[cgroup.Process]bool   // root's processes that were reported
	recorded   map[string]map[int]uint64 // what the last pass read of the record of descent
	lost       uint64                    // processes that are not recorded, as of the last pass
	lostOf     map[int]uint64            // and of users who have too many, by uid
	partial    map[string]string         // tracked leases of which processes may not be recorded, and why
	lists      cgroup.ProcessLists
	passes     int // since a lease was tracked or the record had a process
}

// startedLease is a lease with the time at which it started.
type startedLease struct {
	lease *lease.Lease
	at    startTime
}

// Note starts to track a lease. It is called before the process of the lease may continue: the process may leave before the
// first pass, and then the lease ends with it.
func (x *Escaped) Note(l *lease.Lease) {
	if l.InPlace() || l.Isolation.Cgroup == "" {
		return // Its processes were not moved into a cgroup of gpushare.
	}
	began := startTime{tick: ticksNow(), pid: procfs.LastPID()}
	if l.Started != nil && l.Started.Before(x.Since) {
		began = startTime{tick: ticksAt(*l.Started)}
	}
	x.startMu.Lock()
	defer x.startMu.Unlock()
	x.started = append(x.started, startedLease{l, began})
}

// addStarted adds the leases that Note has received. x.mu is held.
func (e *Escapes) addStarted() {
	x := &e.Escaped
	x.startMu.Lock()
	started := x.started
	x.started = nil
	x.startMu.Unlock()
	if x.leases == nil {
		x.leases, x.startTimes, x.exempted = map[string]*lease.Lease{}, map[string]startTime{}, map[cgroup.Process]bool{}
		x.partial = map[string]string{}
	}
	for _, n := range started {
		if x.leases[n.lease.ID] != nil {
			continue
		}
		x.leases[n.lease.ID], x.startTimes[n.lease.ID] = n.lease, n.at
		earlier := e.Descent != nil && e.RecordBegins && n.lease.Started != nil && n.lease.Started.Before(x.Since)
		if earlier {
			x.partial[n.lease.ID] = startedFirst
		}
		if e.Descent == nil || earlier {
			// Whether the process is inside was not read yet: only its start time is known.
			x.tracker.add(n.lease.ID, n.lease.Process.PID, n.lease.Process.Start, 0)
		}
	}
}

// ticksAt returns a time in clock ticks since boot, rounded up.
func ticksAt(t time.Time) uint64 {
	now := ticksNow()
	ago := time.Since(t) / (time.Second / procfs.Ticks)
	if ago < 0 || uint64(ago) > now {
		return now + 1 // The clock was set. It is better to miss a child than to kill an unrelated process.
	}
	return now - uint64(ago) + 1
}

// forget drops the leases that have ended and have no process left. live are the leases that have not ended.
func (x *Escaped) forget(live map[string][]int, searchesRecord bool) {
	for id := range x.leases {
		_, still := live[id]
		if still = still || x.tracker.hasLease(id) || len(x.recorded[id]) > 0; !still {
			delete(x.leases, id)
			delete(x.startTimes, id)
			delete(x.partial, id)
		}
	}
	if searchesRecord && len(x.partial) == 0 {
		x.tracker = tracker{} // No pass looks from now on.
	}
	for p := range x.exempted {
		if !procfs.Alive(p.PID, p.Start) {
			delete(x.exempted, p)
		}
	}
}

func ticksNow() uint64 { return uint64(procfs.BootTime() / (time.Second / procfs.Ticks)) }

// escapedLoop checks the leases once in each sample interval.
func (e *Escapes) escapedLoop(ctx context.Context) {
	for {
		if _, ok := e.Escaped.Wake.Every(ctx, e.SampleInterval()); !ok {
			return
		}
		if err := e.endEscaped(ctx); err != nil && ctx.Err() == nil {
			e.Log.Error("cannot search for processes that left their leases", "error", err)
		}
		e.Counters.EscapeSearches.Add(1)
	}
}

// endEscaped finds and kills the processes that belong to a lease and run outside of it.
func (e *Escapes) endEscaped(ctx context.Context) error {
	e.updateFormer()
	h, ok := e.Attribution.Hierarchy()
	enforcing := ok && e.State.Desired().Enforcing()
	x := &e.Escaped
	x.mu.Lock()
	defer x.mu.Unlock()
	defer func() { e.updateConditions(enforcing) }()
	if !enforcing {
		return nil // No process was moved into a cgroup of gpushare.
	}
	e.addStarted()
	if x.rests() {
		return nil
	}
	if err := e.notePartial(); err != nil {
		return err
	}
	search := e.searchByLooking
	if e.Descent != nil {
		search = e.searchRecorded
	}
	found, live, err := search(h)
	if err != nil {
		x.passes = 0 // The next pass reads what this one has not.
		return err
	}
	if len(found) > 0 {
		e.killEscaped(ctx, found, func() ([]escapedProcess, error) {
			x.tracker.previous = nil // Read parent and session of every process again: new children are likely now.
			found, _, err := search(h)
			return found, err
		})
	}
	x.forget(live, e.Descent != nil)
	return nil
}

// restPasses is how many passes of a node without leases go by until the record is read nevertheless.
const restPasses = 30

// rests reports whether there is nothing to search: no lease is tracked, and the record had no process when it was last read. What an
// ended lease has left is in the record, and its lease is tracked. The lock of Escaped is held.
func (x *Escaped) rests() bool {
	if len(x.leases) > 0 || len(x.recorded) > 0 || !x.tracker.empty() {
		x.passes = 0
		return false
	}
	x.passes++
	return x.passes%restPasses != 1
}

// searchByLooking finds escaped processes without a record of descent: by what was seen inside, by parents and by sessions. It
// misses a process of which nothing was seen before its parents ended. The lock of Escaped is held.
func (e *Escapes) searchByLooking(h cgroup.Hierarchy) (found []escapedProcess, live map[string][]int, err error) {
	x := &e.Escaped
	at := ticksNow()
	s, err := e.readScopes(h)
	if err != nil {
		return nil, nil, err
	}
	if len(s.inside) == 0 && x.tracker.empty() {
		x.tracker.previous = nil
		return nil, s.inside, nil
	}
	l := snapshot{at: at, inside: s.inside, startTimes: x.startTimes, stat: procfs.Read, where: s.where}
	if l.all, err = procfs.PIDs(); err != nil {
		return nil, nil, err
	}
	return append(x.tracker.observe(l), e.escapedOnGPUs(l)...), s.inside, nil
}

// scopes is what a pass reads of the cgroups of leases.
type scopes struct {
	port   cgroup.Port
	inside map[string][]int // the processes of each tracked lease that has not ended, ascending
	root   string           // the top cgroup of gpushare; empty when it is unknown
}

// readScopes reads the scopes of all tracked leases. The lock of Escaped is held.
func (e *Escapes) readScopes(h cgroup.Hierarchy) (scopes, error) {
	s := scopes{port: e.Port, inside: map[string][]int{}}
	tracked := func(l *lease.Lease) bool {
		return !l.InPlace() && l.Isolation.Cgroup != "" && e.Escaped.leases[l.ID] != nil
	}
	for _, id := range e.Table.LiveIDs(tracked) {
		leaf, err := e.Port.Leaf(id)
		if err != nil {
			continue // It ended meanwhile.
		}
		s.inside[id] = nil
		for _, cg := range []string{leaf, path.Dir(leaf)} {
			pids, err := e.Escaped.lists.Direct(h, cg)
			if err != nil && !errors.Is(err, cgroup.ErrNotFound) {
				return s, err
			}
			s.inside[id] = append(s.inside[id], pids...)
		}
		slices.Sort(s.inside[id])
		s.root = topOf(leaf)
	}
	e.Escaped.lists.CloseOthers()
	e.Escaped.note(s.inside, e.Now())
	for id := range e.Escaped.leases { // The cgroup of an ended lease has the same root.
		if cg := e.Escaped.leases[id].Isolation.Cgroup; s.root == "" && cg != "" {
			s.root = topOf(cg)
		}
	}
	if all := e.Observer.Last().Slices; s.root == "" && len(all) > 0 {
		s.root = topOf(all[0].Path)
	}
	return s, nil
}

// insideList are the processes in the cgroups of leases.
type insideList struct {
	at   time.Time
	pids map[int]bool
}

// insideFor is how long a list of the processes inside is used: a pass comes each second, and may take longer.
const insideFor = 2 * time.Second

// note keeps the processes inside leases for lists of processes that are compared with them: to read the cgroup of each takes longer than
// the lists of all leases.
func (x *Escaped) note(inside map[string][]int, now time.Time) {
	all := insideList{at: now, pids: map[int]bool{}}
	for _, pids := range inside {
		for _, pid := range pids {
			all.pids[pid] = true
		}
	}
	x.inside.Store(&all)
}

// wasInside reports whether the last pass found a process in a lease, if that was lately.
func (x *Escaped) wasInside(pid int, now time.Time) bool {
	all := x.inside.Load()
	return all != nil && now.Sub(all.at) < insideFor && all.pids[pid]
}

// where returns where a process is now; false: it has exited.
func (s scopes) where(pid int) (location, bool) {
	cg, err := procfs.Cgroup(pid)
	if err != nil {
		return location{}, false
	}
	at := location{path: cg, managed: s.root != "" && cgroup.Below(cg, s.root)}
	at.lease, _ = s.port.ScopeOf(pid)
	return at, true
}

// topOf returns the top cgroup of a path. All cgroups of gpushare are below one.
func topOf(cg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(cg, "/"), "/")
	return "/" + name
}

// escapedOnGPUs checks the processes that use managed GPUs outside of all leases. A process whose parent or session belongs
// to a lease belongs to that lease, whatever way it left.
func (e *Escapes) escapedOnGPUs(l snapshot) []escapedProcess {
	var out []escapedProcess
	want := e.State.Desired()
	node := e.Samples.Overlay(e.Observer.Last())
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if !want.Manages(g.Identity.UUID) {
			continue
		}
		for j := range g.Processes {
			pid := g.Processes[j].PID
			if s := e.Escaped.tracker.members[pid]; s != nil {
				continue // It was checked already.
			}
			if escaped, ok := e.Escaped.tracker.descendantByParents(pid, l); ok {
				out = append(out, escaped)
			}
		}
	}
	return out
}

// killRounds limits how often the found processes are stopped and their children searched for.
const killRounds = 16

// killEscaped sends SIGSTOP until no new process is found, so that they cannot start more children, and then kills them
// all. search finds the processes that are outside now. The lock of Escaped is held.
func (e *Escapes) killEscaped(ctx context.Context, found []escapedProcess, search func() ([]escapedProcess, error)) {
	pidfds := map[int]*procfs.Pidfd{}
	defer func() {
		for _, p := range pidfds {
			_ = p.Close() // There is nothing to flush.
		}
	}()
	var all []escapedProcess
	for round := 0; round < killRounds && len(found) > 0; round++ {
		grew := false
		for _, escaped := range found {
			if pidfds[escaped.pid] != nil || e.exempt(escaped) {
				continue
			}
			p, err := procfs.OpenPidfd(escaped.pid, escaped.start)
			if err != nil {
				continue // It has exited.
			}
			pidfds[escaped.pid], grew = p, true
			all = append(all, escaped)
			if err := p.Signal(ctx, unix.SIGSTOP); err != nil && !errors.Is(err, procfs.ErrNoProcess) {
				e.Log.Warn("cannot send SIGSTOP to a process that left its lease", "pid", escaped.pid, "error", err)
			}
		}
		if !grew {
			break
		}
		var err error
		if found, err = search(); err != nil {
			break // The processes found so far are killed.
		}
	}
	var targets []*procfs.Pidfd
	for _, escaped := range all {
		targets = append(targets, pidfds[escaped.pid])
	}
	e.killStopped(ctx, all, func(ctx context.Context, pid int) error { return pidfds[pid].Signal(ctx, unix.SIGKILL) })
	wait, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	// When ctx itself has ended, nothing is known of their end.
	if err := stop.NewProcesses(targets...).Reporting(e.Reporter).KillWithin(wait); err != nil && ctx.Err() == nil {
		e.Log.Error("processes that left their leases do not exit", "error", err)
	}
}

// killStopped kills processes that got SIGSTOP, also when ctx has ended: the daemon would leave them stopped. The relay of signals has its
// own deadlines. One that could not be killed is not reported as killed: the next pass tries again.
func (e *Escapes) killStopped(ctx context.Context, all []escapedProcess, kill func(ctx context.Context, pid int) error) {
	ctx = context.WithoutCancel(ctx)
	var ended []string // what is reported of each; empty: nothing
	for _, escaped := range all {
		switch err := kill(ctx, escaped.pid); {
		case err == nil:
			ended = append(ended, "it was killed")
		case errors.Is(err, procfs.ErrNoProcess):
			ended = append(ended, "it has exited")
		default:
			ended = append(ended, "")
			e.Log.Error("cannot kill a process that left its lease", "pid", escaped.pid, "error", err)
		}
	}
	for i, decision := range ended {
		if decision != "" {
			e.reportEscape(all[i], decision)
		}
	}
}

// exempt reports whether an escaped process is kept because it belongs to root: an administrator may have moved it, and
// root can leave a lease anyway. It is reported once.
func (e *Escapes) exempt(escaped escapedProcess) bool {
	keep := stop.DecideEscaped(escaped.pid)
	if keep == stop.MayStop {
		return false
	}
	if p := (cgroup.Process{PID: escaped.pid, Start: escaped.start}); keep != stop.Unknown && !e.Escaped.exempted[p] {
		e.Escaped.exempted[p] = true
		e.reportEscape(escaped, "it belongs to root and is kept")
	}
	return true
}

// reportEscape reports one escaped process in the log, in an event and in a notice of the lease.
func (e *Escapes) reportEscape(escaped escapedProcess, decision string) {
	text := fmt.Sprintf("pid %d (%s) left the lease for %s: %s; %s", escaped.pid, escaped.name, escaped.path, escaped.why, decision)
	e.Log.Warn(
		"a process left its lease", "message_id", report.MessageLeaseLeft, "lease", escaped.lease, "pid", escaped.pid, "command",
		escaped.name, "cgroup", escaped.path, "why", escaped.why, "decision", decision,
	)
	if _, live := e.Table.Get(escaped.lease); live {
		e.Table.Notice(escaped.lease, lease.Notice{Kind: "lease.escaped", Text: text})
		return
	}
	// The lease ended with it.
	if l := e.Escaped.leases[escaped.lease]; l != nil {
		e.Events.Publish(l.Event("lease.escaped", text))
	}
}

// Note starts to track a lease, before its process may continue. A lease without a cgroup that has a record did not start,
// because the daemon ended meanwhile: its process is not one of a lease.
func (e *Escapes) Note(l *lease.Lease) {
	e.Escaped.Note(l)
	if e.Descent != nil && l.Isolation.Cgroup == "" {
		if err := e.Descent.Release(l.ID); err != nil {
			e.Log.Warn("cannot release the process of a lease that did not start", "lease", l.ID, "error", err)
		}
	}
}
