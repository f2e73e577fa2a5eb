package engines

import (
	"context"
	"errors"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// waiters are the leases whose cgroup is waited for. Each has one goroutine, which looks again when its lease has changed.
type waiters struct {
	mu  locks.Mutex[locks.Leaf]       // guards what follows
	all map[string]context.CancelFunc // ends the wait of a lease, by its id
}

// add is false if the lease has a goroutine that waits.
func (w *waiters) add(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[id] != nil {
		return false
	}
	if w.all == nil {
		w.all = map[string]context.CancelFunc{}
	}
	w.all[id] = func() {}
	return true
}

// next returns the context of the next wait. It ends when the lease changes from now on.
func (w *waiters) next(ctx context.Context, id string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[id] = cancel
	return ctx, cancel
}

func (w *waiters) remove(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, id)
}

// Changed is called for every change of a lease, with the lock of the table held.
func (en *Engines) Changed(l *lease.Lease) {
	if l.Engine == nil {
		return
	}
	en.waiters.mu.Lock()
	defer en.waiters.mu.Unlock()
	if cancel := en.waiters.all[l.ID]; cancel != nil {
		cancel()
	}
}

// await waits for the cgroup of a lease, unless that is done already.
func (en *Engines) await(id string) {
	if !en.waiters.add(id) {
		return
	}
	en.Tasks.Go(func() {
		defer en.waiters.remove(id)
		defer en.Conditions.Clear(conditionNotBound, id)
		var failed failure
		for en.awaitOnce(en.Tasks.Context(), id, &failed) {
		}
	})
}

// awaitOnce waits for the next thing that decides about a lease without processes. It is false if there is no such lease any more.
func (en *Engines) awaitOnce(ctx context.Context, id string, failed *failure) (again bool) {
	changed, cancel := en.waiters.next(ctx, id) // before the lease is read
	defer cancel()
	l, ok := en.Table.Get(id)
	if !ok || !l.AwaitsCgroup() {
		return false
	}
	left := time.Duration(api.MostBindTimeout) // A lease that is kept waits again then.
	if !l.Kept() {
		left = l.Engine.BindBy.Sub(en.Now())
	}
	if left <= 0 {
		// It may have come while no daemon ran.
		if l.Cgroup != "" && en.bind(ctx, &l, failed) {
			return ctx.Err() == nil
		}
		reason := "it had no process until " + l.Engine.BindBy.Local().Format(time.DateTime)
		if failed.err != nil {
			reason = failed.reason()
		}
		en.drop(ctx, &l, reason)
		return false
	}
	there := en.populated(changed, &l, left)
	if ctx.Err() != nil {
		return false // The daemon ends. The next run goes on.
	}
	if there && !en.bind(ctx, &l, failed) {
		en.pause(ctx, &l, failed)
	}
	return true
}

// populated waits until the cgroup of a lease has a process, or the context or the time is over.
func (en *Engines) populated(ctx context.Context, l *lease.Lease, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	h, err := en.Hierarchy()
	if err == nil && l.Cgroup != "" {
		err = h.WaitAnyPopulated(ctx, l.Cgroups())
		if err == nil {
			return true
		}
	}
	if err != nil && ctx.Err() == nil {
		en.Log.Warn("cannot wait for the cgroup of a lease", "lease", l.ID, "cgroup", l.Cgroup, "error", err)
		loop.Pause(ctx, rebindInterval)
		return false
	}
	<-ctx.Done()
	return false
}

// bind starts a lease whose cgroup is there. It is false if there was no process to bind, and if it could not be bound: it is tried again,
// until its time is over. Where the cgroup may not be bound at all only a lease that is kept is: an administrator ends it.
func (en *Engines) bind(ctx context.Context, l *lease.Lease, failed *failure) bool {
	unlock, err := en.keys.lock(ctx, l.Engine.Key)
	if err != nil {
		return true
	}
	defer unlock()
	now, ok := en.Table.Get(l.ID)
	if !ok || !now.AwaitsCgroup() {
		return true // A request was faster.
	}
	p, err := en.firstProcess(ctx, &now)
	if err == nil && p == nil {
		failed.pause = rebindInterval
		return false
	}
	if err == nil {
		_, _, err = en.start(ctx, now.ID, *p, true)
	}
	if err == nil {
		en.Conditions.Clear(conditionNotBound, now.ID)
		return true
	}
	if failed.note(err) {
		en.Log.Error("cannot bind a lease to its cgroup", "lease", now.ID, "key", now.Engine.Key, "cgroup", now.Cgroup, "error", err)
	}
	if !now.Kept() && refused(err) {
		en.drop(ctx, &now, failed.reason())
		return true
	}
	en.reportFailure(&now, failed)
	return false
}

// refused reports whether a cgroup may not be bound, whenever it is tried.
func refused(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && (e.Kind == api.KindDenied || e.Kind == api.KindInvalid)
}

// firstProcess is a process of a lease that waits for one; nil: its cgroups have none. A cgroup of another user is taken from a lease that
// is kept: its other ones are bound.
func (en *Engines) firstProcess(ctx context.Context, l *lease.Lease) (*cgroup.Process, error) {
	for _, cg := range l.Cgroups() {
		_, p, err := en.Cgroups.EngineCgroup(cg, l.UID, l.AttachedBy)
		if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == api.KindDenied && l.Kept() {
			en.Log.Warn("a cgroup is of another user, and of its lease no more", "lease", l.ID, "cgroup", cg, "error", err)
			if en.Table.DropCgroup(l.ID, cg) {
				if err := en.Table.Record(ctx); err != nil {
					return nil, err
				}
			}
			continue
		}
		if p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// drop ends a lease without processes.
func (en *Engines) drop(ctx context.Context, l *lease.Lease, reason string) {
	dropped, err := en.Table.DropUnbound(ctx, l.ID, reason)
	if err != nil {
		en.Log.Error("cannot record the end of a lease", "lease", l.ID, "error", err)
	}
	if dropped {
		en.Events.Publish(l.Event("lease.ended", reason))
		en.Wake()
	}
}
