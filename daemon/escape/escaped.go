package escape

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
)

// Whoever leaves a lease is killed at once, without the polite way that everybody else is stopped by. Outside no wall
// holds: each second of grace would be one with the GPU open and no quota, and what must hold is that an escaped process is found
// and ended within one period. Nor can it be frozen first, because its cgroup is not ours. It loses nothing that it was
// promised: a job that is done with its lease ends.

// Escaped tracks the processes of all leases that have a scope of ours.
type Escaped struct {
	Wake loop.Wake // a lease ended: perhaps because its process left

	Since   time.Time               // when this daemon began
	startMu locks.Mutex[locks.Leaf] // guards started; nothing else is taken or waited for under it
	started []startedLease          // not tracked yet

	mu         locks.Mutex[locks.EscapeScan] // guards what follows; taken before startMu
	tracker    tracker
	leases     map[string]*lease.Lease // those tracked, also after they ended
	startTimes map[string]startTime
	exempted   map[cgroup.Process]bool // root's processes that were told of
}

// startedLease is a lease that began, and when.
type startedLease struct {
	lease *lease.Lease
	at    startTime
}

// Note takes a lease up before anything else can happen to it: the process that became it may leave before the first
// look, and take the lease with it. It is called before that process is told to go on.
func (x *Escaped) Note(l *lease.Lease) {
	if l.InPlace() || l.Isolation.Cgroup == "" {
		return // Nobody was moved into a cgroup of ours.
	}
	began := startTime{tick: ticksNow(), pid: procfs.LastPID()}
	if l.Started != nil && l.Started.Before(x.Since) {
		began = startTime{tick: ticksAt(*l.Started)}
	}
	x.startMu.Lock()
	defer x.startMu.Unlock()
	x.started = append(x.started, startedLease{l, began})
}

// addStarted puts those that were noted tracked.
func (x *Escaped) addStarted() {
	x.startMu.Lock()
	started := x.started
	x.started = nil
	x.startMu.Unlock()
	if x.leases == nil {
		x.leases, x.startTimes, x.exempted = map[string]*lease.Lease{}, map[string]startTime{}, map[cgroup.Process]bool{}
	}
	for _, n := range started {
		if x.leases[n.lease.ID] != nil {
			continue
		}
		x.leases[n.lease.ID], x.startTimes[n.lease.ID] = n.lease, n.at
		// Nobody has looked whether it is inside: it is known by its start time only.
		x.tracker.add(n.lease.ID, n.lease.Process.PID, n.lease.Process.Start, 0)
	}
}

// ticksAt is a moment in clock ticks since boot, rounded up.
func ticksAt(t time.Time) uint64 {
	now := ticksNow()
	ago := time.Since(t) / (time.Second / attribution.Ticks)
	if ago < 0 || uint64(ago) > now {
		return now + 1 // The clock was set: better to miss a child than to take a stranger for one.
	}
	return now - uint64(ago) + 1
}

// forget drops the leases that are over and of which nobody lives. live are those that are not over.
func (x *Escaped) forget(live map[string][]int) {
	for id := range x.leases {
		if _, still := live[id]; !still && !x.tracker.hasLease(id) {
			delete(x.leases, id)
			delete(x.startTimes, id)
		}
	}
	for p := range x.exempted {
		if !procfs.Alive(p.PID, p.Start) {
			delete(x.exempted, p)
		}
	}
}

func ticksNow() uint64 { return uint64(procfs.BootTime() / (time.Second / attribution.Ticks)) }

// escapedLoop looks at the leases once in a process-list period.
func (e *Escapes) escapedLoop(ctx context.Context) {
	for {
		if _, ok := e.Escaped.Wake.Sleep(ctx, e.SampleInterval()); !ok {
			return
		}
		if err := e.endEscaped(ctx); err != nil && ctx.Err() == nil {
			e.Log.Error("cannot look for processes that left their leases", "error", err)
		}
	}
}

// endEscaped finds and ends the processes that belong to a lease and live outside.
func (e *Escapes) endEscaped(ctx context.Context) error {
	h, ok := e.Attribution.Hierarchy()
	if !ok || !e.State.Desired().Enforcing() {
		return nil // Nobody was moved anywhere.
	}
	x := &e.Escaped
	x.mu.Lock()
	defer x.mu.Unlock()
	x.addStarted()
	l, err := e.readLeases(h)
	if err != nil {
		return err
	}
	if len(l.inside) == 0 && x.tracker.empty() {
		x.tracker.previous = nil
		x.forget(l.inside)
		return nil
	}
	found := x.tracker.observe(l)
	found = append(found, e.escapedOnGPUs(l)...)
	if len(found) > 0 {
		e.killEscaped(ctx, h, found)
	}
	x.forget(l.inside)
	return nil
}

// readLeases reads what one look is made from. The lock of Escaped is held.
func (e *Escapes) readLeases(h cgroup.Hierarchy) (snapshot, error) {
	l := snapshot{at: ticksNow(), inside: map[string][]int{}, startTimes: e.Escaped.startTimes, stat: procfs.Read}
	root := ""
	for _, one := range e.Table.Live() {
		if one.InPlace() || one.Isolation.Cgroup == "" || e.Escaped.leases[one.ID] == nil {
			continue
		}
		leaf, err := e.Port.Leaf(one.ID)
		if err != nil {
			continue // It ended meanwhile.
		}
		l.inside[one.ID] = nil
		for _, cg := range []string{leaf, path.Dir(leaf)} {
			pids, err := h.Direct(cg)
			if err != nil && !errors.Is(err, cgroup.ErrNotFound) {
				return l, err
			}
			l.inside[one.ID] = append(l.inside[one.ID], pids...)
		}
		root = topOf(leaf)
	}
	for id := range e.Escaped.leases { // One that is over tells it too.
		if cg := e.Escaped.leases[id].Isolation.Cgroup; root == "" && cg != "" {
			root = topOf(cg)
		}
	}
	l.where = func(pid int) (location, bool) {
		cg, err := procfs.Cgroup(pid)
		if err != nil {
			return location{}, false
		}
		at := location{path: cg, managed: root != "" && cgroup.Below(cg, root)}
		at.lease, _ = e.Port.ScopeOf(pid)
		return at, true
	}
	var err error
	l.all, err = procfs.PIDs()
	return l, err
}

// topOf is the cgroup at the top of a path: all that is ours is below one.
func topOf(cg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(cg, "/"), "/")
	return "/" + name
}

// escapedOnGPUs looks at who uses managed GPUs without a scope of ours: one whose parent or session is a lease's belongs
// there, however it got out.
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
				continue // It was looked at already.
			}
			if escaped, ok := e.Escaped.tracker.descendantByParents(pid, l); ok {
				out = append(out, escaped)
			}
		}
	}
	return out
}

// killRounds bounds how often those who were found are stopped and their children looked for.
const killRounds = 16

// killEscaped stops the processes, so that they have no more children, until no new one is found, and then kills them all.
// The lock of Escaped is held.
func (e *Escapes) killEscaped(ctx context.Context, h cgroup.Hierarchy, found []escapedProcess) {
	pidfds := map[int]*procfs.Pidfd{}
	defer func() {
		for _, p := range pidfds {
			_ = p.Close() // Nothing is written through it.
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
				continue // It ended.
			}
			pidfds[escaped.pid], grew = p, true
			all = append(all, escaped)
			if err := p.Signal(unix.SIGSTOP); err != nil && !errors.Is(err, procfs.ErrGone) {
				e.Log.Warn("cannot stop a process that left its lease", "pid", escaped.pid, "error", err)
			}
		}
		if !grew {
			break
		}
		l, err := e.readLeases(h)
		if err != nil {
			break // Those who were found are ended at least.
		}
		e.Escaped.tracker.previous = nil // Everybody is asked for parent and session: it is worth the reading now.
		found = e.Escaped.tracker.observe(l)
	}
	for _, escaped := range all {
		if err := pidfds[escaped.pid].Signal(unix.SIGKILL); err != nil && !errors.Is(err, procfs.ErrGone) {
			e.Log.Error("cannot end a process that left its lease", "pid", escaped.pid, "error", err)
		}
	}
	for _, escaped := range all {
		e.reportEscape(escaped, "it was ended")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, escaped := range all {
		if err := pidfds[escaped.pid].Wait(ctx); err != nil && !errors.Is(err, procfs.ErrGone) {
			e.Log.Error("a process that left its lease was killed and does not end", "pid", escaped.pid, "error", err)
		}
	}
}

// exempt tells whether an escaped process is root's: who moved it is as likely its administrator, and root can leave anyway. It is told
// of once.
func (e *Escapes) exempt(escaped escapedProcess) bool {
	keep := stop.DecideEscaped(escaped.pid)
	if keep == stop.MayStop {
		return false
	}
	if p := (cgroup.Process{PID: escaped.pid, Start: escaped.start}); keep != stop.Unknown && !e.Escaped.exempted[p] {
		e.Escaped.exempted[p] = true
		e.reportEscape(escaped, "it is root's and is left alone")
	}
	return true
}

// reportEscape tells of one escaped process: the events, the log and the people of the lease.
func (e *Escapes) reportEscape(escaped escapedProcess, decision string) {
	text := fmt.Sprintf("process %d (%s) left the lease for %s: %s; %s", escaped.pid, escaped.name, escaped.path, escaped.why, decision)
	e.Log.Warn("a process left its lease", "lease", escaped.lease, "pid", escaped.pid, "command", escaped.name, "cgroup", escaped.path, "why", escaped.why, "fate", decision)
	if _, live := e.Table.Get(escaped.lease); live {
		e.Table.Notice(escaped.lease, lease.Notice{Kind: "lease.escaped", Text: text})
		return
	}
	// The lease ended with it.
	if l := e.Escaped.leases[escaped.lease]; l != nil {
		e.Events.Publish(l.Event("lease.escaped", text))
	}
}

// Note takes up a lease that begins, before its process is told to go on.
func (e *Escapes) Note(l *lease.Lease) { e.Escaped.Note(l) }
