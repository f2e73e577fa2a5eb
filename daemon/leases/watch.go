package leases

import (
	"context"
	"errors"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// Watchers observe the ends of leases and of their commands.
type Watchers struct {
	Exits exitListener // nil: how commands end that users started is not known

	mu      locks.Mutex[locks.Watchers] // guards what follows
	Watched map[string]bool             // leases with a goroutine that waits until they are empty

	unknown unknownScopes
}

// WatchLease ends the lease when its last process has exited. There is one watcher for each lease.
func (ls *Leases) WatchLease(id string) {
	ls.Watchers.mu.Lock()
	defer ls.Watchers.mu.Unlock()
	if ls.Watchers.Watched[id] {
		return
	}
	ls.Watchers.Watched[id] = true
	if l, ok := ls.Table.Get(id); ok {
		ls.Escapes.Note(&l)
		ls.followExit(&l)
	}
	ls.Tasks.Go(func() {
		defer func() {
			ls.Watchers.mu.Lock()
			defer ls.Watchers.mu.Unlock()
			delete(ls.Watchers.Watched, id)
		}()
		ls.watchUntilEmpty(ls.Tasks.Context(), id)
	})
}

func (ls *Leases) watchUntilEmpty(ctx context.Context, id string) {
	l, ok := ls.Table.Get(id)
	if !ok {
		return
	}
	if l.Kept() {
		ls.followKept(ctx, id) // It ends when the lease does.
	}
	err := ls.Attribution.PortOf(&l).WaitEmpty(ctx, id)
	killed := errors.Is(err, cgroup.ErrOutOfMemory)
	if err != nil && !killed && !errors.Is(err, cgroup.ErrNotFound) {
		if ctx.Err() != nil {
			return // The daemon ends: leases outlive it.
		}
		ls.Log.Error("cannot watch a lease", "lease", id, "error", err)
	}
	why := "the last process ended"
	if now, still := ls.Table.Get(id); l.InPlace() && (!still || now.Reason != "") {
		why = "it was released or stopped"
		if still {
			why = now.Reason
		}
	}
	reason := "its last process ended"
	if killed {
		reason = cgroup.ErrOutOfMemory.Error()
	}
	// The lease is ended even while the daemon stops: this has a timeout of its own.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stop.IsolationTimeout)
	defer cancel()
	for ctx.Err() == nil {
		err := ls.Table.Ended(end, id, reason)
		if err == nil {
			break
		}
		ls.Log.Error("cannot end a lease", "lease", id, "error", err)
		if !loop.Pause(ctx, time.Second) {
			return
		}
		end, cancel = context.WithTimeout(context.WithoutCancel(ctx), stop.IsolationTimeout)
		defer cancel()
	}
	switch {
	case killed:
		why = reason
	case l.Origin == lease.OriginDetached:
		why = ls.endText(id, "the last process ended")
	case ls.hasOwnExit(&l):
		why = ls.endText(id, why) // A lease that was released has no exit: its process runs.
	}
	ls.Events.Publish(l.Event("lease.ended", why))
	ls.Wake()
}
