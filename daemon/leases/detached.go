package leases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/lease"
)

// pendingPrograms are the programs of leases that are about to be isolated. They are not part of a lease: an
// environment may have secrets and is not written to disk.
type pendingPrograms struct {
	mu  locks.Mutex[locks.Leaf] // guards all
	all map[string]*launch.Program
}

func (p *pendingPrograms) put(id string, program *launch.Program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[string]*launch.Program{}
	}
	p.all[id] = program
}

func (p *pendingPrograms) take(id string) *launch.Program {
	p.mu.Lock()
	defer p.mu.Unlock()
	program := p.all[id]
	delete(p.all, id)
	return program
}

// startProgram starts the command of a detached lease, isolated, and returns when it runs.
func (ls *Leases) startProgram(
	ctx context.Context, l *lease.Lease, s cgroup.Scope, p *launch.Program, result *lease.IsolationResult, isolated bool,
) (cgroup.ScopeState, error) {
	state, w, err := ls.Detached.Programs.Start(ctx, s, isolated, outputOf(ls.detachedOf(l.UID)))
	if err != nil {
		return cgroup.ScopeState{}, err
	}
	defer w.Close()
	if isolated { // If the start fails its process ends, and so does the record.
		if _, err := ls.Escapes.Record(l.ID, w.Process.PID); err != nil {
			return cgroup.ScopeState{}, err
		}
	}
	if err := ls.Memory.Begin(ctx, l, state.Path); err != nil {
		return cgroup.ScopeState{}, err
	}
	p.Env = (&api.Environment{Environment: result.Environment, Unset: result.Unset}).Over(p.Env)
	if err := runProgram(ctx, w, p); err != nil {
		return cgroup.ScopeState{}, err
	}
	if w.Warning != "" {
		result.Warnings = append(result.Warnings, w.Warning)
	}
	result.Process = lease.Process(w.Process)
	return state, nil
}

// programTimeout bounds the change into the directory of a program and its execution. Both are on file systems of the user, which may never
// answer.
const programTimeout = 10 * time.Second

// runProgram sends the program to its process, and returns when it runs. The process is the user's by then, and in the lease: if it
// does not get on, it is killed with the lease.
func runProgram(ctx context.Context, w *launch.Pending, p *launch.Program) error {
	bounded, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	err := w.Start(bounded, p)
	if bounded.Err() == nil || !errors.Is(err, bounded.Err()) {
		return err
	}
	message := fmt.Sprintf("cannot start %s: it does not run after %s", p.Path, api.Duration(programTimeout))
	if wait := stop.WaitOf(w.Process.PID); wait != "" {
		message += ": it waits in " + wait
	}
	return &launch.Failure{Code: launch.ExitCannot, Message: message, Hint: fmt.Sprintf("see whether 'ls %s %s' returns", p.Dir, p.Path)}
}
