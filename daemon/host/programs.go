package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/systemd"
)

// supervisedPrograms are under keepers of ours, where there is no service manager.
type supervisedPrograms struct {
	supervisors *launch.Supervisors
	isolated    programStarter
	followed    programStarter
}

// programStarter has processes born in scopes.
type programStarter interface {
	StartProgram(ctx context.Context, s cgroup.Scope, spawn cgroup.Spawn) (cgroup.ScopeState, cgroup.Process, error)
}

// Start starts what waits for the word.
func (k supervisedPrograms) Start(ctx context.Context, s cgroup.Scope, isolated bool) (cgroup.ScopeState, *launch.Pending, error) {
	at := k.isolated
	if !isolated {
		at = k.followed
	}
	var w *launch.Pending
	state, _, err := at.StartProgram(ctx, s, func(ctx context.Context, dir *os.File) (cgroup.Process, error) {
		var err error
		if w, err = k.supervisors.Start(ctx, s.ID, dir); err != nil {
			return cgroup.Process{}, err
		}
		return cgroup.Process(w.Process), nil
	})
	if err != nil && w != nil {
		w.Close()
	}
	return state, w, err
}

// Main finds the process that the word was for.
func (k supervisedPrograms) Main(_ context.Context, id string) (lease.Process, error) {
	p, err := k.supervisors.Main(id)
	return lease.Process(p), err
}

// Result tells how it ended.
func (k supervisedPrograms) Result(ctx context.Context, id string) (launch.Result, error) {
	return k.supervisors.Result(ctx, id)
}

// Output copies what it printed.
func (k supervisedPrograms) Output(ctx context.Context, l *lease.Lease, lines int, ended <-chan struct{}, to io.Writer) error {
	return k.supervisors.Output(ctx, l.ID, lines, ended, to)
}

// Note puts a line of ours among it.
func (k supervisedPrograms) Note(l *lease.Lease, line string) error {
	return k.supervisors.Note(l.ID, line)
}

// Sweep drops what is not wanted any more.
func (k supervisedPrograms) Sweep(wanted func(id string) bool) { k.supervisors.Prune(wanted) }

// unitPrograms are services of systemd.
type unitPrograms struct {
	a       *systemd.Adapter
	program string // gpushare-start
}

// Start starts what waits for the word.
func (u unitPrograms) Start(ctx context.Context, s cgroup.Scope, isolated bool) (cgroup.ScopeState, *launch.Pending, error) {
	if !isolated {
		s.Slice, s.Closed, s.Devices = cgroup.SliceName{}, false, nil
	}
	local, remote, err := launch.Pair()
	if err != nil {
		return cgroup.ScopeState{}, nil, err
	}
	defer remote.Close()
	state, p, err := u.a.StartProgram(ctx, s, []string{u.program}, remote)
	if err != nil {
		local.Close()
		return cgroup.ScopeState{}, nil, err
	}
	remote.Close() // Ours would keep the connection up after the other end executed.
	w, err := u.accept(ctx, local, p)
	return state, w, err
}

func (u unitPrograms) accept(ctx context.Context, local net.Conn, p cgroup.Process) (*launch.Pending, error) {
	w, err := launch.Await(ctx, local)
	if err != nil {
		return nil, err
	}
	if cgroup.Process(w.Process) != p {
		w.Close()
		return nil, fmt.Errorf("cannot start it: process %d answers instead of %d", w.Process.PID, p.PID)
	}
	return w, nil
}

// Main finds the process that the word was for.
func (u unitPrograms) Main(ctx context.Context, id string) (lease.Process, error) {
	p, err := u.a.Program(ctx, id)
	return lease.Process(p), err
}

// Result tells how it ended.
func (u unitPrograms) Result(ctx context.Context, id string) (launch.Result, error) {
	r, err := u.a.Result(ctx, id)
	if errors.Is(err, cgroup.ErrNotFound) {
		err = fmt.Errorf("%w: %w", launch.ErrUnknown, err)
	}
	return launch.Result(r), err
}

// outputSlack is for clocks that are set while a lease runs.
const outputSlack = time.Minute

// Output copies what it printed.
func (u unitPrograms) Output(ctx context.Context, l *lease.Lease, lines int, ended <-chan struct{}, to io.Writer) error {
	return u.a.Output(ctx, l.ID, l.Created.Add(-outputSlack), lines, ended, to)
}

// Note puts a line of ours among it.
func (u unitPrograms) Note(l *lease.Lease, line string) error { return u.a.Note(l.Process.PID, line) }

// Sweep does nothing: the journal keeps its own bounds.
func (u unitPrograms) Sweep(func(id string) bool) {}
