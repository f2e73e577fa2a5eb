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

// Spawn starts a process that waits before it executes its program. It starts in the cgroup whose open directory it gets,
// or in the caller's cgroup when that is nil.
type Spawn func(ctx context.Context, cgroup *os.File) (Process, error)

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
	run, err := t.makeScope(s, scope)
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
	t.index.Register(s.ID, scope)
	return t.scopeState(s.ID, scope), p, nil
}

func (t *Tree) makeScope(s Scope, scope string) (run string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.makeSliceLocked(s.Slice); err != nil {
		return "", err
	}
	if ps, err := t.h.Processes(scope); err == nil && len(ps) > 0 {
		return "", fmt.Errorf("it exists already: %w", inUse(ps))
	}
	run, _, err = t.makeScopeLocked(s, scope)
	return run, err
}

func (t *Tree) spawn(ctx context.Context, run string, spawn Spawn) (Process, error) {
	dir, err := os.OpenFile(t.h.Dir(run), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return Process{}, err
	}
	defer dir.Close()
	p, err := spawn(ctx, dir)
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
	first, err := spawn(ctx, nil)
	if err != nil {
		return ScopeState{}, Process{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	s.Process = first
	state, err := p.StartScope(ctx, s)
	if err != nil {
		return ScopeState{}, Process{}, errors.Join(err, signal(first, unix.SIGKILL))
	}
	return state, first, nil
}
