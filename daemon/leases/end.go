package leases

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
)

// DeleteLease stops a lease gracefully (SIGTERM, then SIGKILL) and answers when it has ended.
func (ls *Leases) DeleteLease(c *server.Call) error {
	id := c.R.PathValue("id")
	l, ok := ls.Table.Get(id)
	if !ok && c.Caller.Admin && ls.isUnknown(id) {
		if err := c.AsAdmin("stop a lease"); err != nil {
			return err
		}
		ctx, err := server.GoOn(c.Ctx())
		if err != nil {
			return err
		}
		if err := ls.Stopper.KillUnknown(ctx, ls.Port, id); err != nil {
			return err
		}
		return c.Reply(http.StatusOK, map[string]string{"stopped": id})
	}
	if !ok || !(c.Caller.Admin || c.Caller.IsMember(l.Terms.Tenant) || c.Caller.IsUserOf(&l)) {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("there is no lease %q that you may stop", id),
			Hint:    "see 'gpushare lease list'",
		}
	}
	c.Note.Tenant, c.Note.Text = l.Terms.Tenant, "a lease of "+l.User
	if !c.Caller.MayEnd(&l) {
		return &api.Error{
			Kind:    api.KindDenied,
			Message: fmt.Sprintf("%s may not stop lease %s of user %s", c.Caller.Name, id, l.User),
			Hint:    "its user or an administrator may",
		}
	}
	if !c.Caller.IsUserOf(&l) {
		if err := c.AsAdmin("stop lease " + id); err != nil {
			return err
		}
	}
	ctx, err := server.GoOn(c.Ctx())
	if err != nil {
		return err
	}
	if err := ls.StopLease(ctx, &l, "stopped by "+c.Caller.Name); err != nil {
		return err
	}
	return c.Reply(http.StatusOK, map[string]string{"stopped": id})
}

// stops are the stops that were begun. Each goes on until its lease has ended, whether its caller waits or not: SIGTERM may have been
// sent, and a lease that is ending has no limits of a running one.
type stops struct {
	mu    locks.Mutex[locks.Leaf]  // guards what follows
	tries map[string]*attemptToEnd // by lease: the one that goes on, or the next one
}

// attemptToEnd is one try to end a lease.
type attemptToEnd struct {
	over    chan struct{}     // closed when it has ended
	err     error             // of an attempt that has ended
	callers []context.Context // of those who wait for it, to whom it says what it waits for
}

// betweenStops is the time from an attempt that failed to the next one.
const betweenStops = 5 * time.Second

// StopLease stops a lease gracefully (SIGTERM, then SIGKILL), and returns when it has ended, or why it cannot be ended now. The stop goes
// on to its end if that is so, or if ctx ends before.
func (ls *Leases) StopLease(ctx context.Context, l *lease.Lease, reason string) error {
	try := ls.beginStop(l, reason, ctx)
	select {
	case <-try.over:
		return try.err
	case <-ctx.Done():
		return fmt.Errorf("lease %s is being stopped: %w", l.ID, context.Cause(ctx))
	}
}

// StopInBackground is StopLease for callers that do not wait.
func (ls *Leases) StopInBackground(l *lease.Lease, reason string) { ls.beginStop(l, reason) }

// beginStop begins to stop a lease, and returns the attempt. A stop that goes on keeps its reason.
func (ls *Leases) beginStop(l *lease.Lease, reason string, callers ...context.Context) *attemptToEnd {
	ls.stops.mu.Lock()
	defer ls.stops.mu.Unlock()
	if try := ls.stops.tries[l.ID]; try != nil {
		try.callers = append(try.callers, callers...)
		return try
	}
	if ls.stops.tries == nil {
		ls.stops.tries = map[string]*attemptToEnd{}
	}
	try := &attemptToEnd{over: make(chan struct{}), callers: callers}
	ls.stops.tries[l.ID] = try
	copied := *l
	ls.Tasks.Go(func() { ls.stopUntilEnded(&copied, reason) }) // ends with the lease
	return try
}

// stopUntilEnded stops a lease, and tries again until it has ended.
func (ls *Leases) stopUntilEnded(l *lease.Lease, reason string) {
	ctx := ls.Tasks.Context()
	for notify := true; ; notify = false {
		bounded, cancel := context.WithTimeout(ctx, stop.StopGrace+stop.IsolationTimeout)
		waits := step.WithWaits(bounded, func(text string) { ls.stops.say(l.ID, text) })
		err := ls.stopOnce(waits, l, reason, notify)
		cancel()
		_, there := ls.Table.Get(l.ID)
		again := err != nil && there && ctx.Err() == nil
		ls.stops.ended(l.ID, err, again)
		if !again {
			return
		}
		ls.Log.Warn("cannot end a lease", "lease", l.ID, "reason", reason, "error", err)
		loop.Pause(ctx, betweenStops)
	}
}

// ended reports the end of an attempt to those who wait for it.
func (x *stops) ended(id string, err error, again bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	try := x.tries[id]
	delete(x.tries, id)
	if again {
		x.tries[id] = &attemptToEnd{over: make(chan struct{})}
	}
	try.err = err
	close(try.over)
}

// say says what an attempt waits for.
func (x *stops) say(id, text string) {
	x.mu.Lock()
	callers := slices.Clone(x.tries[id].callers)
	x.mu.Unlock()
	for _, c := range callers {
		if c.Err() == nil { // It waits.
			step.ReportWait(c, text)
		}
	}
}

// resumeEnds goes on with the ends that an earlier daemon had begun.
func (ls *Leases) resumeEnds() {
	for _, l := range ls.Table.Live() {
		switch {
		case l.State != lease.Ending:
		case l.Stopping:
			ls.StopInBackground(&l, l.Reason)
		default:
			ls.Tasks.Go(func() {
				bounded, cancel := context.WithTimeout(ls.Tasks.Context(), stop.IsolationTimeout)
				defer cancel()
				if err := ls.Table.Ended(bounded, l.ID, l.Reason); err != nil {
					ls.Log.Error("cannot end a lease", "lease", l.ID, "error", err)
				}
			})
		}
	}
}

// stopOnce makes one attempt.
func (ls *Leases) stopOnce(ctx context.Context, l *lease.Lease, reason string, first bool) error {
	if ls.Table.DropContainer(l.ID, reason, time.Time{}) {
		return nil // It waited for its container, and has no process.
	}
	if dropped, err := ls.Table.DropUnbound(ctx, l.ID, reason); dropped {
		ls.Events.Publish(l.Event("lease.ended", reason))
		ls.Wake()
		return err // It waited for its cgroup.
	}
	if err := ls.Table.Ending(l.ID, reason); err != nil {
		return err
	}
	// The next daemon goes on with it.
	if err := ls.Table.Save(ctx); err != nil {
		ls.Revised.Set() // It is said there, and tried again.
	}
	notify := func(ctx context.Context) {
		if !first {
			return
		}
		ls.Table.Notice(l.ID, lease.Notice{Kind: "lease.stopping", Text: "it is being stopped: " + reason})
		ls.awaitDelivery(ctx)
	}
	if err := ls.Stopper.Lease(ctx, l, stop.StopGrace, notify); err != nil {
		return err
	}
	if err := ls.Table.Ended(ctx, l.ID, reason); err != nil {
		return err
	}
	return ls.Stopper.AwaitEnded(ctx, l.ID)
}

// RemoveIsolation kills what is left in the scope. Processes in place continue as before their lease.
func (w Isolation) RemoveIsolation(ctx context.Context, l lease.Lease) error {
	if l.InPlace() {
		w.Leases.Stopper.Ended(&l)
		w.Leases.recordExit(ctx, &l)
		w.Leases.releaseInPlace(ctx, &l)
		if err := w.Leases.Policy.SyncLoginFilters(nil, l.ID); err != nil {
			w.Leases.Log.Warn("cannot revoke a GPU from a login", "lease", l.ID, "error", err) // The converge loop tries again.
		}
		return nil
	}
	w.Leases.Memory.End(ctx, &l)
	// An interrupted start is not recorded: both ports are called; a port without the scope does nothing.
	for _, port := range []cgroup.Port{w.Leases.Port, w.Leases.Follow} {
		if err := w.Leases.Stopper.KillScope(ctx, port, &l); err != nil {
			return err
		}
	}
	w.Leases.Stopper.Ended(&l)
	if l.Origin == lease.OriginDetached {
		w.Leases.recordResult(ctx, l.ID)
	}
	w.Leases.recordExit(ctx, &l)
	return nil
}
