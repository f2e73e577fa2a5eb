package access

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
)

const (
	checkInterval = 500 * time.Millisecond
	// stopAfter is how long a connection is reported before its processes are stopped.
	stopAfter = 2 * time.Second
	// grace is the time between SIGTERM and SIGKILL. It is short, because all others wait.
	grace = 500 * time.Millisecond
	// exitTimeout bounds one stop.
	exitTimeout = 5 * time.Second
)

// connection is a connection on which a control daemon waits.
type connection struct {
	device mps.Device
	inode  uint64
}

// blocked are the connections that keep others out.
type blocked struct {
	mu         locks.Mutex[locks.Leaf]  // guards what follows
	before     map[connection]time.Time // found by the check before this one, since when
	now        map[connection]time.Time
	conditions map[string]api.Condition
}

// begin begins a check.
func (b *blocked) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before, b.now, b.conditions = b.now, map[connection]time.Time{}, map[string]api.Condition{}
}

// add adds a connection to those of this check, and returns since when it is known.
func (b *blocked) add(c connection, condition api.Condition, now time.Time) (since time.Time, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	since, known = b.before[c]
	if !known {
		since = now
	}
	b.now[c], b.conditions[fmt.Sprint(c)] = since, condition
	return since, known
}

// ended reports whether a connection of the check before is not one of this check.
func (b *blocked) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.before {
		if _, remains := b.now[c]; !remains {
			return true
		}
	}
	return false
}

// Run looks for processes that keep others out, until ctx ends.
func (a *Access) Run(ctx context.Context) {
	for loop.Every(ctx, checkInterval) {
		a.check(ctx)
	}
}

// check checks all control daemons at the same time: each may have to wait for a greeting that does not come.
func (a *Access) check(ctx context.Context) {
	want, node := a.State.Desired(), a.Observer.Last()
	b := &a.blocked
	b.begin()
	var all sync.WaitGroup
	for i := range node.GPUs {
		g := &node.GPUs[i]
		for _, d := range desiredOn(want, g) {
			all.Go(func() {
				peers, err := a.MPS.SilentPeers(ctx, d)
				if err != nil && !errors.Is(err, procfs.ErrNoProcess) && ctx.Err() == nil {
					a.Log.Warn("cannot find what keeps others from MPS", "device", d, "error", err)
				}
				for j := range peers {
					a.handle(ctx, g, d, &peers[j])
				}
			})
		}
	}
	all.Wait()
	a.Conditions.Replace("mps-blocked", b.conditions)
	if b.ended() {
		a.Wake() // What it kept out was seen as down, and is not any more.
	}
}

// handle reports a connection, and stops its processes when it is due.
func (a *Access) handle(ctx context.Context, g *observe.GPU, d mps.Device, p *control.Peer) {
	c, id := connection{d, p.Inode}, string(d.GPU)
	who, keeps := a.describe(g, p)
	text := fmt.Sprintf("%s: %s connected to its MPS and sends nothing, and no process can join meanwhile", planner.DeviceName(g, d), who)
	hint := "it is stopped within three seconds"
	if keeps != "" {
		text += "; it is not stopped: " + keeps
		hint = "end it"
	}
	condition := api.Condition{GPU: id, Message: text, Hint: hint}
	at, known := a.blocked.add(c, condition, a.Now())
	if !known {
		a.Conditions.Put("mps-blocked", fmt.Sprint(c), condition)
		a.Events.Publish(api.Event{Kind: "mps.blocked", GPU: id, Message: text})
		a.Log.Warn("a process keeps others from MPS", "message_id", report.MessageMPSBlocked, "gpu", id, "process", who)
	}
	if a.releaseFrozen(ctx, d, p, text) || keeps != "" || a.Now().Sub(at) < stopAfter {
		return
	}
	if err := a.stop(ctx, id, p, text); err != nil && ctx.Err() == nil {
		a.Log.Error("cannot stop what keeps others from MPS", "gpu", id, "process", who, "error", err)
	}
	a.Wake()
}

// releaseFrozen thaws the frozen leases of a connection, so that they end their handshake. It reports whether there were any.
func (a *Access) releaseFrozen(ctx context.Context, d mps.Device, p *control.Peer, text string) bool {
	if a.Freezer == nil {
		return false
	}
	released := false
	for _, st := range p.Processes {
		id, leased := a.Attribution.LeaseOf(st.PID)
		if !leased {
			continue
		}
		frozen, err := a.Freezer.Release(ctx, id, d)
		if frozen {
			released = true
			a.Events.Publish(api.Event{
				Kind:    "mps.blocked.thawed",
				GPU:     string(d.GPU),
				Lease:   id,
				Message: text + ": its lease is frozen, and was thawed for its handshake",
			})
		}
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("a lease that is joining MPS is not frozen as it was", "lease", id, "error", err)
		}
	}
	return released
}

// describe names the processes of a connection, and why they are not stopped; empty: they are.
func (a *Access) describe(g *observe.GPU, p *control.Peer) (who, keeps string) {
	who = p.Names()
	if who == "" {
		who = "a process that cannot be found"
	}
	if p.UID >= 0 {
		who += " of user " + a.Identities.Names.UserName(p.UID)
	}
	in := map[string]bool{}
	for _, st := range p.Processes {
		id, leased := a.Attribution.LeaseOf(st.PID)
		if leased && !in[id] {
			in[id] = true
			who += " in lease " + id
		}
		decision := stop.DecidePID(st.PID)
		if leased {
			decision = stop.DecideEscaped(st.PID) // It is a tenant's, whatever its uid.
		}
		switch {
		case decision == stop.IsRoot || decision == stop.Unknown:
			keeps = "it belongs to root"
		case decision == stop.IsSystem:
			keeps = "it belongs to the system"
		case st.PID == os.Getpid() || st.PPID == os.Getpid() || attribution.ServesMPS(g.ControlDaemons(), st):
			keeps = "it is gpushare's own"
		}
	}
	if len(p.Processes) == 0 && !stoppable(p.UID, a.Identities.Table.Load().Self) {
		keeps = "it belongs to root or the system"
	}
	return who, keeps
}

// stoppable reports whether a process of a user that cannot be found would be stopped. own is the daemon's uid.
func stoppable(uid, own int) bool {
	return stop.Decide(stop.Process{UID: uint32(max(uid, 0)), Known: uid >= 0}, own) == stop.MayStop
}

// stop stops the processes of a connection, or ends the connection where none is known.
func (a *Access) stop(ctx context.Context, gpu string, p *control.Peer, text string) error {
	text += ": it is stopped"
	notify := func(context.Context) {
		a.Events.Publish(api.Event{Kind: "mps.blocked.stopped", GPU: gpu, Message: text})
		a.Audit("gpushared", "mps-blocked", text)
	}
	if len(p.Processes) == 0 {
		notify(ctx)
		return p.Disconnect()
	}
	var pidfds []*procfs.Pidfd
	for _, st := range p.Processes {
		h, err := procfs.OpenPidfd(st.PID, st.Start)
		if errors.Is(err, procfs.ErrNoProcess) {
			continue // It has exited.
		}
		if err != nil {
			return err
		}
		pidfds = append(pidfds, h)
	}
	target := stop.NewProcesses(pidfds...).Reporting(a.Reporter)
	defer target.Close()
	ctx, cancel := context.WithTimeout(ctx, exitTimeout)
	defer cancel()
	return (&stop.Escalation{Target: target, Notify: notify}).Run(ctx, grace)
}
