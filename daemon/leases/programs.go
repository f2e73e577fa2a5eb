package leases

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

// Programs starts the commands of leases that nobody waits for, and knows what became of them. They are nobody's
// children and outlive us.
type Programs interface {
	// start starts what waits for the word, behind the walls of the scope. Without walls, on a node that only observes, it
	// is only followed.
	start(ctx context.Context, s cgroup.Scope, walled bool) (cgroup.ScopeState, *launch.Waiting, error)
	// main is the process that the word was for, found again after a restart; the zero one when it has ended.
	main(ctx context.Context, id string) (lease.Process, error)
	// result tells how it ended, once: what the service manager kept of it is let go. launch.ErrUnknown when nobody saw it.
	result(ctx context.Context, id string) (launch.Result, error)
	// output copies what it printed; see launch.Keepers.Output.
	output(ctx context.Context, l *lease.Lease, lines int, ended <-chan struct{}, to io.Writer) error
	// note puts a line of ours among what it printed.
	note(l *lease.Lease, line string) error
	// sweep drops what was kept of leases that nobody asks for any more.
	sweep(wanted func(id string) bool)
}

// KeptPrograms are under keepers of ours, where there is no service manager.
type KeptPrograms struct {
	Keepers *launch.Keepers
	Walls   birthplace
	Follow  birthplace
}

// birthplace has processes born in scopes.
type birthplace interface {
	StartProgram(ctx context.Context, s cgroup.Scope, spawn cgroup.Spawn) (cgroup.ScopeState, cgroup.Process, error)
}

func (k KeptPrograms) start(ctx context.Context, s cgroup.Scope, walled bool) (cgroup.ScopeState, *launch.Waiting, error) {
	at := k.Walls
	if !walled {
		at = k.Follow
	}
	var w *launch.Waiting
	state, _, err := at.StartProgram(ctx, s, func(ctx context.Context, dir *os.File) (cgroup.Process, error) {
		var err error
		if w, err = k.Keepers.Start(ctx, s.ID, dir); err != nil {
			return cgroup.Process{}, err
		}
		return cgroup.Process(w.Process), nil
	})
	if err != nil && w != nil {
		w.Close()
	}
	return state, w, err
}

func (k KeptPrograms) main(_ context.Context, id string) (lease.Process, error) {
	p, err := k.Keepers.Main(id)
	return lease.Process(p), err
}

func (k KeptPrograms) result(ctx context.Context, id string) (launch.Result, error) {
	return k.Keepers.Result(ctx, id)
}

func (k KeptPrograms) output(ctx context.Context, l *lease.Lease, lines int, ended <-chan struct{}, to io.Writer) error {
	return k.Keepers.Output(ctx, l.ID, lines, ended, to)
}

func (k KeptPrograms) note(l *lease.Lease, line string) error { return k.Keepers.Note(l.ID, line) }

func (k KeptPrograms) sweep(wanted func(id string) bool) { k.Keepers.Sweep(wanted) }

// UnitPrograms are services of systemd.
type UnitPrograms struct {
	A       *systemd.Adapter
	Program string // gpushare-start
}

func (u UnitPrograms) start(ctx context.Context, s cgroup.Scope, walled bool) (cgroup.ScopeState, *launch.Waiting, error) {
	if !walled {
		s.Slice, s.Closed, s.Devices = cgroup.SliceName{}, false, nil
	}
	ours, theirs, err := launch.Pair()
	if err != nil {
		return cgroup.ScopeState{}, nil, err
	}
	defer theirs.Close()
	state, p, err := u.A.StartProgram(ctx, s, []string{u.Program}, theirs)
	if err != nil {
		ours.Close()
		return cgroup.ScopeState{}, nil, err
	}
	theirs.Close() // Ours would keep the connection up after the other end executed.
	w, err := u.meet(ctx, ours, p)
	return state, w, err
}

func (u UnitPrograms) meet(ctx context.Context, ours net.Conn, p cgroup.Process) (*launch.Waiting, error) {
	w, err := launch.Meet(ctx, ours)
	if err != nil {
		return nil, err
	}
	if cgroup.Process(w.Process) != p {
		w.Close()
		return nil, fmt.Errorf("cannot start it: process %d answers instead of %d", w.Process.PID, p.PID)
	}
	return w, nil
}

func (u UnitPrograms) main(ctx context.Context, id string) (lease.Process, error) {
	p, err := u.A.Program(ctx, id)
	return lease.Process(p), err
}

func (u UnitPrograms) result(ctx context.Context, id string) (launch.Result, error) {
	r, err := u.A.Result(ctx, id)
	if errors.Is(err, cgroup.ErrNotFound) {
		err = fmt.Errorf("%w: %w", launch.ErrUnknown, err)
	}
	return launch.Result(r), err
}

// outputSlack is for clocks that are set while a lease runs.
const outputSlack = time.Minute

func (u UnitPrograms) output(ctx context.Context, l *lease.Lease, lines int, ended <-chan struct{}, to io.Writer) error {
	return u.A.Output(ctx, l.ID, l.Created.Add(-outputSlack), lines, ended, to)
}

func (u UnitPrograms) note(l *lease.Lease, line string) error { return u.A.Note(l.Process.PID, line) }

// sweep does nothing: the journal keeps its own bounds.
func (u UnitPrograms) sweep(func(id string) bool) {}
