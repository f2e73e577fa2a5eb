package leases

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/lease"
)

// exitListener reports how processes ended that are not children of the daemon; *exits.Listener is one.
type exitListener interface {
	Run(ctx context.Context) error
	Follow(pid int, start uint64)
	Forget(pid int, start uint64)
	Result(ctx context.Context, pid int, start uint64) (status unix.WaitStatus, at time.Time, ok bool)
}

// exitTimeout is how long the result of a process that has ended may arrive after its end.
const exitTimeout = 200 * time.Millisecond

// listen keeps the results of commands known until ctx ends.
func (ls *Leases) listen(ctx context.Context) {
	if ls.Watchers.Exits == nil {
		return
	}
	if err := ls.Watchers.Exits.Run(ctx); err != nil {
		ls.Log.Warn("the exit codes of commands that users started are no longer known", "error", err)
	}
}

// hasOwnExit reports whether the result of a lease's command comes from the kernel: a detached one has a parent that
// records it.
func (ls *Leases) hasOwnExit(l *lease.Lease) bool {
	return ls.Watchers.Exits != nil && l.Origin != lease.OriginDetached && l.Process.PID != 0
}

func (ls *Leases) followExit(l *lease.Lease) {
	if ls.hasOwnExit(l) {
		ls.Watchers.Exits.Follow(l.Process.PID, l.Process.Start)
	}
}

// recordExit records the result of a lease's command, immediately before the lease ends. It is unknown if the command ended
// while the daemon did not run.
func (ls *Leases) recordExit(ctx context.Context, l *lease.Lease) {
	p := l.Process
	if !ls.hasOwnExit(l) {
		return
	}
	defer ls.Watchers.Exits.Forget(p.PID, p.Start)
	if procfs.Alive(p.PID, p.Start) {
		return // It leaves the lease and continues.
	}
	ctx, cancel := context.WithTimeout(ctx, exitTimeout)
	defer cancel()
	if s, at, ok := ls.Watchers.Exits.Result(ctx, p.PID, p.Start); ok {
		r := launch.Result{Exited: s.Exited(), Code: s.ExitStatus(), At: at}
		if s.Signaled() {
			r.Code = int(s.Signal())
		}
		ls.Ended.result(l.ID, r)
	}
}
