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
// holds: each second of grace would be one with the GPU open and no quota, and what must hold is that a leaver is found
// and ended within one period. Nor can it be frozen first, because its cgroup is not ours. It loses nothing that it was
// promised: a job that is done with its lease ends.

// Leavers keeps the roll of all leases that have a scope of ours.
type Leavers struct {
	Wake loop.Wake // a lease ended: perhaps because its process left

	Since   time.Time               // when this daemon began
	startMu locks.Mutex[locks.Leaf] // guards started; nothing else is taken or waited for under it
	started []startNoted            // not on the roll yet

	mu     locks.Mutex[locks.Leavers] // guards what follows; taken before startMu
	roll   roll
	leases map[string]*lease.Lease // those on the roll, also after they ended
	began  map[string]birth
	spared map[cgroup.Process]bool // root's processes that were told of
}

// startNoted is a lease that began, and when.
type startNoted struct {
	lease *lease.Lease
	began birth
}

// Note takes a lease up before anything else can happen to it: the process that became it may leave before the first
// look, and take the lease with it. It is called before that process is told to go on.
func (x *Leavers) Note(l *lease.Lease) {
	if l.Visiting() || l.Walls.Cgroup == "" {
		return // Nobody was moved into a cgroup of ours.
	}
	began := birth{tick: ticksNow(), pid: procfs.LastPID()}
	if l.Started != nil && l.Started.Before(x.Since) {
		began = birth{tick: ticksAt(*l.Started)}
	}
	x.startMu.Lock()
	defer x.startMu.Unlock()
	x.started = append(x.started, startNoted{l, began})
}

// take puts those that were noted on the roll.
func (x *Leavers) take() {
	x.startMu.Lock()
	started := x.started
	x.started = nil
	x.startMu.Unlock()
	if x.leases == nil {
		x.leases, x.began, x.spared = map[string]*lease.Lease{}, map[string]birth{}, map[cgroup.Process]bool{}
	}
	for _, n := range started {
		if x.leases[n.lease.ID] != nil {
			continue
		}
		x.leases[n.lease.ID], x.began[n.lease.ID] = n.lease, n.began
		// Nobody has looked whether it is inside: it is known by its start time only.
		x.roll.enter(n.lease.ID, n.lease.Process.PID, n.lease.Process.Start, 0)
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
func (x *Leavers) forget(live map[string][]int) {
	for id := range x.leases {
		if _, still := live[id]; !still && !x.roll.holds(id) {
			delete(x.leases, id)
			delete(x.began, id)
		}
	}
	for p := range x.spared {
		if !procfs.Alive(p.PID, p.Start) {
			delete(x.spared, p)
		}
	}
}

func ticksNow() uint64 { return uint64(procfs.BootTime() / (time.Second / attribution.Ticks)) }

// leaverLoop looks at the leases once in a process-list period.
func (e *Escapes) leaverLoop(ctx context.Context) {
	for {
		if _, ok := e.Leavers.Wake.Sleep(ctx, e.SampleInterval()); !ok {
			return
		}
		if err := e.lookForLeavers(ctx); err != nil && ctx.Err() == nil {
			e.Log.Error("cannot look for processes that left their leases", "error", err)
		}
	}
}

// lookForLeavers finds and ends the processes that belong to a lease and live outside.
func (e *Escapes) lookForLeavers(ctx context.Context) error {
	h, ok := e.Attribution.Hierarchy()
	if !ok || !e.State.Desired().Enforcing() {
		return nil // Nobody was moved anywhere.
	}
	x := &e.Leavers
	x.mu.Lock()
	defer x.mu.Unlock()
	x.take()
	l, err := e.readLeases(h)
	if err != nil {
		return err
	}
	if len(l.inside) == 0 && x.roll.empty() {
		x.roll.known = nil
		x.forget(l.inside)
		return nil
	}
	found := x.roll.see(l)
	found = append(found, e.leaversOnGPUs(l)...)
	if len(found) > 0 {
		e.endLeavers(ctx, h, found)
	}
	x.forget(l.inside)
	return nil
}

// readLeases reads what one look is made from. The leavers' lock is held.
func (e *Escapes) readLeases(h cgroup.Hierarchy) (look, error) {
	l := look{at: ticksNow(), inside: map[string][]int{}, began: e.Leavers.began, stat: procfs.Read}
	root := ""
	for _, one := range e.Table.Live() {
		if one.Visiting() || one.Walls.Cgroup == "" || e.Leavers.leases[one.ID] == nil {
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
		root = firstOf(leaf)
	}
	for id := range e.Leavers.leases { // One that is over tells it too.
		if cg := e.Leavers.leases[id].Walls.Cgroup; root == "" && cg != "" {
			root = firstOf(cg)
		}
	}
	l.where = func(pid int) (place, bool) {
		cg, err := procfs.Cgroup(pid)
		if err != nil {
			return place{}, false
		}
		at := place{path: cg, ours: root != "" && cgroup.Below(cg, root)}
		at.lease, _ = e.Port.Owner(pid)
		return at, true
	}
	var err error
	l.all, err = procfs.PIDs()
	return l, err
}

// firstOf is the cgroup at the top of a path: all that is ours is below one.
func firstOf(cg string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(cg, "/"), "/")
	return "/" + name
}

// leaversOnGPUs looks at who uses managed GPUs without a scope of ours: one whose parent or session is a lease's belongs
// there, however it got out.
func (e *Escapes) leaversOnGPUs(l look) []leaver {
	var out []leaver
	want := e.State.Desired()
	node := e.Samples.Over(e.Observer.Last())
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if !want.Manages(g.Identity.UUID) {
			continue
		}
		for j := range g.Processes {
			pid := g.Processes[j].PID
			if s := e.Leavers.roll.seats[pid]; s != nil {
				continue // It was looked at already.
			}
			if lv, ok := e.Leavers.roll.kinAbove(pid, l); ok {
				out = append(out, lv)
			}
		}
	}
	return out
}

// leaverRounds bounds how often those who were found are stopped and their children looked for.
const leaverRounds = 16

// endLeavers stops the processes, so that they have no more children, until no new one is found, and then kills them all.
// The leavers' lock is held.
func (e *Escapes) endLeavers(ctx context.Context, h cgroup.Hierarchy, found []leaver) {
	held := map[int]*procfs.Pidfd{}
	defer func() {
		for _, p := range held {
			_ = p.Close() // Nothing is written through it.
		}
	}()
	var all []leaver
	for round := 0; round < leaverRounds && len(found) > 0; round++ {
		grew := false
		for _, lv := range found {
			if held[lv.pid] != nil || e.spare(lv) {
				continue
			}
			p, err := procfs.OpenPidfd(lv.pid, lv.start)
			if err != nil {
				continue // It ended.
			}
			held[lv.pid], grew = p, true
			all = append(all, lv)
			if err := p.Signal(unix.SIGSTOP); err != nil && !errors.Is(err, procfs.ErrGone) {
				e.Log.Warn("cannot stop a process that left its lease", "pid", lv.pid, "error", err)
			}
		}
		if !grew {
			break
		}
		l, err := e.readLeases(h)
		if err != nil {
			break // Those who were found are ended at least.
		}
		e.Leavers.roll.known = nil // Everybody is asked for parent and session: it is worth the reading now.
		found = e.Leavers.roll.see(l)
	}
	for _, lv := range all {
		if err := held[lv.pid].Signal(unix.SIGKILL); err != nil && !errors.Is(err, procfs.ErrGone) {
			e.Log.Error("cannot end a process that left its lease", "pid", lv.pid, "error", err)
		}
	}
	for _, lv := range all {
		e.tellLeft(lv, "it was ended")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, lv := range all {
		if err := held[lv.pid].Wait(ctx); err != nil && !errors.Is(err, procfs.ErrGone) {
			e.Log.Error("a process that left its lease was killed and does not end", "pid", lv.pid, "error", err)
		}
	}
}

// spare tells whether a leaver is root's: who moved it is as likely its administrator, and root can leave anyway. It is told
// of once.
func (e *Escapes) spare(lv leaver) bool {
	keep := stop.JudgeEscaped(lv.pid)
	if keep == stop.MayStop {
		return false
	}
	if p := (cgroup.Process{PID: lv.pid, Start: lv.start}); keep != stop.Unknown && !e.Leavers.spared[p] {
		e.Leavers.spared[p] = true
		e.tellLeft(lv, "it is root's and is left alone")
	}
	return true
}

// tellLeft tells of one leaver: the events, the log and the people of the lease.
func (e *Escapes) tellLeft(lv leaver, fate string) {
	text := fmt.Sprintf("process %d (%s) left the lease for %s: %s; %s", lv.pid, lv.name, lv.path, lv.why, fate)
	e.Log.Warn("a process left its lease", "lease", lv.lease, "pid", lv.pid, "command", lv.name, "cgroup", lv.path, "why", lv.why, "fate", fate)
	if _, live := e.Table.Get(lv.lease); live {
		e.Table.Notice(lv.lease, lease.Notice{Kind: "lease.left", Text: text})
		return
	}
	// The lease ended with it.
	if l := e.Leavers.leases[lv.lease]; l != nil {
		e.Events.Publish(l.Event("lease.left", text))
	}
}

// Note takes up a lease that begins, before its process is told to go on.
func (e *Escapes) Note(l *lease.Lease) { e.Leavers.Note(l) }
