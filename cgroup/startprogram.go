package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// Spawn starts a process that waits before it executes its program, and a supervisor as its parent. Each starts in the cgroup
// whose open directory it gets, or in the caller's cgroup when that is nil.
type Spawn func(ctx context.Context, run, supervisor *os.File) (Process, error)

// cleanupTimeout bounds the cleanup after a failed start.
const cleanupTimeout = 10 * time.Second

// StartProgram creates a scope and starts its first process inside, when all rules of the scope are active. The process
// must wait until StartProgram has returned.
func (t *Tree) StartProgram(ctx context.Context, s Scope, spawn Spawn) (ScopeState, Process, error) {
	fail := func(err error) (ScopeState, Process, error) {
		return ScopeState{}, Process{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	if err := checkScope(s); err != nil {
		return ScopeState{}, Process{}, err
	}
	scope := path.Join(t.slicePath(s.Slice), s.ID+scopeSuffix)
	run, err := t.makeProgramScope(s, scope)
	if err != nil {
		return fail(err)
	}
	// The lock is released here, so that many programs can start at once. If the empty scope is removed now, the start
	// fails.
	p, err := t.spawn(ctx, run, spawn)
	if err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return fail(errors.Join(err, t.h.Kill(cleanup, scope), t.h.Remove(scope)))
	}
	t.register(s.ID, scope)
	return t.scopeState(s.ID, scope), p, nil
}

// makeProgramScope creates a scope with a cgroup for a supervisor.
func (t *Tree) makeProgramScope(s Scope, scope string) (run string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.makeSliceLocked(s.Slice); err != nil {
		return "", err
	}
	if ps, err := t.h.Processes(scope); err == nil && len(ps) > 0 {
		return "", fmt.Errorf("it exists already: %w", inUse(ps))
	}
	run, undo, err := t.makeScopeLocked(s, scope)
	if err != nil {
		return "", err
	}
	if err := mkdir(t.h.Dir(path.Join(scope, supervising))); err != nil {
		undo()
		return "", err
	}
	return run, nil
}

func (t *Tree) spawn(ctx context.Context, run string, spawn Spawn) (Process, error) {
	dir, err := os.OpenFile(t.h.Dir(run), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return Process{}, err
	}
	defer dir.Close()
	supervisor, err := os.OpenFile(t.h.Dir(path.Join(path.Dir(run), supervising)), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return Process{}, err
	}
	defer supervisor.Close()
	p, err := spawn(ctx, dir, supervisor)
	if err != nil {
		return Process{}, err
	}
	return p, t.h.Verify(p, run)
}

// StartProgram starts a process. It and its descendants are the scope.
func (p *Processes) StartProgram(ctx context.Context, s Scope, spawn Spawn) (ScopeState, Process, error) {
	if err := checkScope(s); err != nil {
		return ScopeState{}, Process{}, err
	}
	first, err := spawn(ctx, nil, nil)
	if err != nil {
		return ScopeState{}, Process{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	s.Process = first
	state, err := p.StartScope(ctx, s)
	if err != nil {
		return ScopeState{}, Process{}, errors.Join(err, signal(context.WithoutCancel(ctx), first, unix.SIGKILL))
	}
	return state, first, nil
}
