package escape

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
)

// With logins closed, no user but root opens a managed GPU outside of a lease. A process that uses one nevertheless left a lease
// without a trace, or got a descriptor from one. It is killed at once, like every escaped process.

// adoptionTime is how long after a spec came into force the logins and units that it adopts may have no lease yet.
const adoptionTime = 5 * time.Second

// The open devices of all processes are listed at most so often, and in at most this part of the time: the list takes longer the
// more files are open on the host. On a busy host one that waits for a processor takes long too, so there is a longest pause.
const (
	openersInterval = 2 * time.Second
	openersPart     = 100
	openersLongest  = 10 * time.Second
)

// openersPause returns the time from the start of a list that took this long to the next.
func openersPause(duration time.Duration) time.Duration {
	return min(max(openersInterval, openersPart*duration), openersLongest)
}

// closedLogins is what unattributedTracker keeps while logins are closed.
type closedLogins struct {
	spec  *state.Desired // in force since
	since time.Time

	read     time.Time // when the open devices were listed last
	duration time.Duration
	nodes    *attribution.OpenNodes // nil: they are not listed
	users    planner.OpenDevices    // of nodes
}

// adopted reports whether a process outside of all leases has left one: logins are closed, and the adoptions of the spec are done.
func (c *closedLogins) adopted(want *state.Desired, now time.Time) bool {
	if c.spec != want {
		c.spec, c.since = want, now
	}
	return want.Enforcing() && want.FiltersLogins() && now.Sub(c.since) >= adoptionTime
}

// openers returns the processes that have a GPU or one of its instances open.
func (c *closedLogins) openers(ctx context.Context, e *Escapes, want *state.Desired, node *observe.Node) *planner.OpenDevices {
	if !want.Enforcing() || !want.FiltersLogins() {
		c.nodes, c.users = nil, planner.OpenDevices{}
	} else if now := e.Now(); now.Sub(c.read) >= openersPause(c.duration) {
		c.nodes = e.Attribution.OpenNodes(ctx, node.GPUs)
		c.users = c.nodes.Devices()
		c.read, c.duration = now, e.Now().Sub(now)
	}
	return &c.users
}

// own returns what a process has open by an act of its own: its user opened it, or it is mapped. received is why the rest is not.
func (c *closedLogins) own(ctx context.Context, pid int) (own *planner.OpenDevices, received string) {
	devices, err := c.nodes.Own(ctx, pid)
	received = "it has not mapped it, and another user opened it, who may have passed it"
	if err != nil {
		received = fmt.Sprintf("it has not mapped it, and the kernel does not say who opened it (%v)", err)
	}
	return &devices, received
}

// mayBeOutside leaves out the processes that only have a device open and are never stopped: monitoring has all of them open.
func (e *Escapes) mayBeOutside(pid int) bool { return stop.DecidePID(pid) == stop.MayStop }

// killOutside kills the processes that are not exempt, and returns the others.
func (e *Escapes) killOutside(ctx context.Context, found []unattributedProcess) (kept []unattributedProcess) {
	for _, s := range found {
		if s.exempt != "" {
			kept = append(kept, s)
			continue
		}
		if err := e.killOne(ctx, s); err != nil && ctx.Err() == nil {
			e.Log.Error("cannot kill a process that uses a GPU outside of all leases", "pid", s.process.PID, "error", err)
			kept = append(kept, s)
		}
	}
	return kept
}

// killOne kills one process. A process that is in a lease by now continues.
func (e *Escapes) killOne(ctx context.Context, s unattributedProcess) error {
	p, err := procfs.OpenPidfd(s.process.PID, s.process.Start)
	if err != nil {
		return nil // It has exited.
	}
	defer p.Close()
	// The pidfd is open now, so the pid cannot be reused between these checks and the signal.
	if _, attributed := e.Attribution.LeaseOf(s.process.PID); attributed || !e.stillUses(ctx, s) {
		return nil
	}
	// The relay of signals has its own deadlines, and what was decided is carried out also when the daemon ends.
	if err := p.Signal(context.WithoutCancel(ctx), unix.SIGKILL); err != nil {
		if errors.Is(err, procfs.ErrNoProcess) {
			return nil // It has exited.
		}
		return err
	}
	text := fmt.Sprintf("pid %d (%s) used %s outside of all leases while logins are closed; it was killed", s.process.PID, s.name, s.where)
	e.Log.Warn(
		"a process used a GPU outside of all leases", "message_id", report.MessageUsedOutside, "pid", s.process.PID, "command", s.name,
		"gpu", s.gpu,
	)
	e.Events.Publish(api.Event{Kind: "gpu.unattributed.stopped", GPU: string(s.gpu), Message: text})
	e.Audit("gpushared", "unattributed", text)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	// It has got the signal; this ends what it waits for too.
	return stop.NewProcesses(p).Reporting(e.Reporter).KillWithin(ctx)
}
