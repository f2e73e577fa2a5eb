package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
)

// Isolation isolates the process of a lease, and removes the isolation. The table calls neither with its lock held, and
// never both at once for one lease.
type Isolation interface {
	// Isolate returns when the process is isolated and all restrictions that are possible here are active.
	Isolate(ctx context.Context, l Lease, p Process) (IsolationResult, error)
	// RemoveIsolation removes what Isolate created. It is called again after it failed, and for leases that were never
	// isolated.
	RemoveIsolation(ctx context.Context, l Lease) error
}

// IsolationResult is what Isolate returns about a process.
type IsolationResult struct {
	Status      api.IsolationStatus
	Environment map[string]string
	Unset       []string // variables that the environment must not have
	Process     Process  // set if Isolate started it
	Warnings    []string
}

// Start isolates the process of a lease that is placed. If it fails the lease has ended, or is ending if its isolation
// could not be removed; after ErrQueuedAgain its ticket waits again.
func (t *Table) Start(ctx context.Context, id string, p Process) (Lease, IsolationResult, error) {
	return t.start(ctx, id, p, t.abandon)
}

// Bind is Start for a keyed lease whose place was reported before. If it fails the lease waits for its processes as before.
func (t *Table) Bind(ctx context.Context, id string, p Process) (Lease, IsolationResult, error) {
	return t.start(ctx, id, p, t.waitAgain)
}

// start calls failed if it fails after the entry is busy, with why.
func (t *Table) start(
	ctx context.Context, id string, p Process, failed func(ctx context.Context, e *entry, cause error) error,
) (Lease, IsolationResult, error) {
	t.mu.Lock()
	e := t.leases[id]
	switch {
	case e == nil:
		t.mu.Unlock()
		return Lease{}, IsolationResult{}, notFound(id)
	case e.State != Placed || e.busy || e.Process != (Process{}):
		t.mu.Unlock()
		return Lease{}, IsolationResult{}, &api.Error{
			Kind:    api.KindConflict,
			Message: fmt.Sprintf("cannot start lease %s: it was started already", id),
		}
	}
	e.busy, e.Process = true, p
	t.changedLocked(&e.Lease)
	l := t.copyLocked(&e.Lease)
	t.mu.Unlock()

	result, err := t.isolate(ctx, e, l, p)
	if occupied, ok := errors.AsType[*Occupied](err); ok && t.queueAgain(ctx, e, occupied.GPU) {
		return Lease{}, IsolationResult{}, ErrQueuedAgain
	}
	if err != nil {
		return Lease{}, IsolationResult{}, failed(ctx, e, fmt.Errorf("cannot start lease %s: %w", id, err))
	}
	t.mu.Lock()
	e.ticket = nil
	e.State, e.Isolation = Isolated, result.Status
	if result.Process != (Process{}) {
		e.Process = result.Process
	}
	t.startTimeLocked(e)
	t.changedLocked(&e.Lease)
	t.mu.Unlock()
	// The record is written before the answer: a lease that was reported is found again after the daemon ended.
	if err := t.save(ctx); err != nil {
		return Lease{}, IsolationResult{}, failed(ctx, e, fmt.Errorf("cannot start lease %s: %w", id, err))
	}
	t.mu.Lock()
	if reason := e.endRequested; reason != "" {
		t.mu.Unlock()
		return Lease{}, IsolationResult{}, failed(
			ctx, e, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot start lease %s: %s", id, reason)},
		)
	}
	e.State, e.busy = Running, false
	t.changedLocked(&e.Lease)
	if e.Terms.Preempt != "" && len(t.queue) > 0 {
		t.evaluateLocked() // It may be stopped for a request that waits.
	}
	l = t.copyLocked(&e.Lease)
	t.mu.Unlock()
	return l, result, nil
}

// isolate records that the lease is about to start, then isolates it: a scope that is found after the daemon ended has
// a record.
func (t *Table) isolate(ctx context.Context, e *entry, l Lease, p Process) (IsolationResult, error) {
	if err := t.save(ctx); err != nil {
		return IsolationResult{}, err
	}
	if err := t.confirm(ctx, e); err != nil {
		return IsolationResult{}, err
	}
	return t.cfg.Isolation.Isolate(ctx, l, p)
}

// startTimeLocked sets the start time and the expiry of the lease.
func (t *Table) startTimeLocked(e *entry) {
	t.countUseLocked()
	now := t.cfg.Now()
	e.Started = &now
	if m, _ := e.Time(); m != nil {
		ends := now.Add(time.Duration(*m))
		if e.EndBy != nil && e.EndBy.Before(ends) {
			ends = *e.EndBy
		}
		e.Expires = &ends
	}
}

// removeIsolationTimeout bounds the cleanup after a failed start, which must not depend on its caller's context.
const removeIsolationTimeout = 30 * time.Second

// abandon ends a lease whose start failed. The entry is busy.
func (t *Table) abandon(ctx context.Context, e *entry, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeIsolationTimeout)
	defer cancel()
	t.mu.Lock()
	e.unstarted = true
	t.mu.Unlock()
	return errors.Join(cause, t.finish(ctx, e, "it could not be started"))
}

// waitAgain takes a start that failed back: a keyed lease waits for its processes. One that was ended meanwhile is abandoned. The entry is
// busy.
func (t *Table) waitAgain(ctx context.Context, e *entry, cause error) error {
	t.mu.Lock()
	l := t.copyLocked(&e.Lease)
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeIsolationTimeout)
	defer cancel()
	if err := t.cfg.Isolation.RemoveIsolation(ctx, l); err != nil {
		return t.abandon(ctx, e, errors.Join(cause, err))
	}
	t.mu.Lock()
	if e.endRequested != "" {
		t.mu.Unlock()
		return t.abandon(ctx, e, cause)
	}
	t.countUseLocked()
	e.State, e.Process, e.Isolation, e.Started, e.Expires = Placed, Process{}, api.IsolationStatus{}, nil, nil
	e.busy = false
	t.changedLocked(&e.Lease)
	t.mu.Unlock()
	return errors.Join(cause, t.save(ctx))
}
