package lease

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// Ending records that the lease is being stopped. It keeps its place until Ended.
func (t *Table) Ending(id, reason string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil {
		return notFound(id)
	}
	if e.State == Running {
		e.State, e.Reason, e.Stopping = Ending, reason, true
		t.changedLocked(&e.Lease)
	}
	return nil
}

// Ended records that the lease's processes have exited: its isolation is removed and its place is free for the next. An
// unknown lease is no error. If the isolation cannot be removed the lease stays ending, with its place: call Ended
// again.
func (t *Table) Ended(ctx context.Context, id, reason string) error {
	t.mu.Lock()
	e := t.leases[id]
	if e == nil {
		t.mu.Unlock()
		return nil
	}
	if e.busy {
		// The call that is running reads this when it has finished.
		e.endRequested = cmp.Or(e.endRequested, reason)
		t.mu.Unlock()
		return nil
	}
	e.busy = true
	t.mu.Unlock()
	return t.finish(ctx, e, reason)
}

// finish removes the isolation and frees the place. The entry is busy.
func (t *Table) finish(ctx context.Context, e *entry, reason string) error {
	t.mu.Lock()
	e.Reason = cmp.Or(e.Reason, reason)
	if e.State != Ending {
		e.State = Ending
		t.changedLocked(&e.Lease)
	}
	l := t.copyLocked(&e.Lease)
	t.mu.Unlock()

	err := t.cfg.Isolation.RemoveIsolation(ctx, l)
	t.mu.Lock()
	e.busy, e.endRequested = false, ""
	if err != nil {
		t.noticeLocked(e, "", "its isolation could not be removed: "+err.Error())
		t.mu.Unlock()
		return fmt.Errorf("cannot end lease %s: %w", l.ID, err)
	}
	t.removeLocked(e)
	t.evaluateLocked()
	t.mu.Unlock()
	return t.save(ctx)
}

// removeLocked removes the lease from the table.
func (t *Table) removeLocked(e *entry) {
	t.countUseLocked()
	delete(t.leases, e.ID)
	if e.Started != nil {
		if !e.unstarted {
			t.endKeyLocked(e)
		}
		t.view.GPUs = slices.Clone(t.view.GPUs) // The caller of Update may have it too.
		t.view.withoutMemoryOf(e)               // Until the next view: this one is of when it ran.
	}
	t.retireIDLocked(e.ID)
	e.State = Ended
	t.changedLocked(&e.Lease)
}
