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

// supervisedPrograms run under supervisor processes of gpushare, if there is no service manager.
type supervisedPrograms struct {
	supervisors *launch.Supervisors
	isolated    programStarter
	followed    programStarter
}

// programStarter starts processes in scopes.
type programStarter interface {
	StartProgram(ctx context.Context, s cgroup.Scope, spawn cgroup.Spawn) (cgroup.ScopeState, cgroup.Process, error)
}

// Start starts a process that waits for its program.
func (k supervisedPrograms) Start(
	ctx context.Context, s cgroup.Scope, isolated bool, kept int64,
) (cgroup.ScopeState, *launch.Pending, error) {
	at := k.isolated
	if !isolated {
		at = k.followed
	}
	var w *launch.Pending
	state, _, err := at.StartProgram(ctx, s, func(ctx context.Context, run, supervisor *os.File) (cgroup.Process, error) {
		var err error
		if w, err = k.supervisors.Start(ctx, s.ID, launch.Cgroups{Run: run, Supervisor: supervisor}, kept); err != nil {
			return cgroup.Process{}, err
		}
		return cgroup.Process(w.Process), nil
	})
	if err != nil && w != nil {
		w.Close()
	}
	return state, w, err
}

// Main finds the process of the command.
func (k supervisedPrograms) Main(_ context.Context, id string) (lease.Process, error) {
	p, err := k.supervisors.Main(id)
	return lease.Process(p), err
}

// Result returns the result of the command.
func (k supervisedPrograms) Result(ctx context.Context, id string) (launch.Result, error) {
	return k.supervisors.Result(ctx, id)
}

// Finish ends the supervisors of ended leases.
func (k supervisedPrograms) Finish(ctx context.Context, ended func(id string) bool) {
	k.supervisors.Finish(ctx, ended)
}

// Output copies the output.
func (k supervisedPrograms) Output(ctx context.Context, l *lease.Lease, lines int, ended <-chan struct{}, to io.Writer) error {
	return k.supervisors.Output(ctx, l.ID, lines, ended, to)
}

// Note adds a line of gpushare to the output.
func (k supervisedPrograms) Note(l *lease.Lease, line string) error {
	return k.supervisors.Note(l.ID, line)
}

// Size is how many bytes of an output are kept.
func (k supervisedPrograms) Size(id string) int64 { return k.supervisors.Size(id) }

// Prune removes the output of leases for which keep is false.
func (k supervisedPrograms) Prune(keep func(id string) bool) { k.supervisors.Prune(keep) }

// unitPrograms run as systemd services.
type unitPrograms struct {
	a       *systemd.Adapter
	program string // gpushare-start
}

// Start starts a process that waits for its program.
func (u unitPrograms) Start(ctx context.Context, s cgroup.Scope, isolated bool, _ int64) (cgroup.ScopeState, *launch.Pending, error) {
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
	remote.Close() // An open copy would keep the connection up after the other process executed the program.
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
		return nil, fmt.Errorf("cannot start it: pid %d answered instead of pid %d", w.Process.PID, p.PID)
	}
	return w, nil
}

// Main finds the process of the command.
func (u unitPrograms) Main(ctx context.Context, id string) (lease.Process, error) {
	p, err := u.a.Program(ctx, id)
	return lease.Process(p), err
}

// Result returns the result of the command.
func (u unitPrograms) Result(ctx context.Context, id string) (launch.Result, error) {
	r, err := u.a.Result(ctx, id)
	if errors.Is(err, cgroup.ErrNotFound) {
		err = fmt.Errorf("%w: %w", launch.ErrUnknown, err)
	}
	return launch.Result(r), err
}

// Finish does nothing: the service manager has no process for a service that has ended.
func (u unitPrograms) Finish(context.Context, func(id string) bool) {}

// outputSlack allows for changes of the clock while a lease runs.
const outputSlack = time.Minute

// Output copies the output.
func (u unitPrograms) Output(ctx context.Context, l *lease.Lease, lines int, ended <-chan struct{}, to io.Writer) error {
	return u.a.Output(ctx, l.ID, l.Created.Add(-outputSlack), lines, ended, to)
}

// Note adds a line of gpushare to the output.
func (u unitPrograms) Note(l *lease.Lease, line string) error { return u.a.Note(l.Process.PID, line) }

// Size is 0: the journal limits its own size.
func (u unitPrograms) Size(string) int64 { return 0 }

// Prune does nothing: the journal limits its own size.
func (u unitPrograms) Prune(func(id string) bool) {}
