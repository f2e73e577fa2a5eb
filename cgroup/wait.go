package cgroup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/loop"
)

const (
	// recheck bounds the wait for one process before it is read whether it is still inside: it may leave its cgroup and go on,
	// and a process tree grows. Both are rare, and every lease waits like this for its end.
	recheck = 3 * time.Second
	// refreshInterval is the time after which the tree of a process is read again.
	refreshInterval = time.Second
	// pollPause is the pause between two reads of a state that the kernel reaches in a fraction of a millisecond.
	pollPause = 50 * time.Microsecond
)

// waitNone returns when list returns no process or ErrNotFound. It waits on the pidfd of one of the processes: that is
// immediate, while the kernel delays notifications of cgroup.events by up to 10 ms and loses the last one when the cgroup
// is removed immediately. inside reports whether a living process is still one of them; nil: the list has to be read for that.
func waitNone(ctx context.Context, list func() ([]Process, error), inside func(Process) bool) error {
	for {
		ps, err := list()
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(ps) == 0 {
			return nil
		}
		if err := waitOne(ctx, ps[0], inside); err != nil {
			return err
		}
	}
}

// waitOne returns when the process has ended, is no longer inside, or it is time to read the list again.
func waitOne(ctx context.Context, p Process, inside func(Process) bool) error {
	pidfd, err := procfs.OpenPidfd(p.PID, p.Start)
	if errors.Is(err, procfs.ErrNoProcess) {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if pidfd.Ended() {
		// It has ended and is still listed: threads of a zombie, or the kernel has not updated the cgroup yet.
		pause(time.Millisecond)
		return ctx.Err()
	}
	for {
		err := waitShort(ctx, pidfd)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if inside == nil || !inside(p) {
			return nil
		}
	}
}

func waitShort(ctx context.Context, pidfd *procfs.Pidfd) error {
	short, cancel := context.WithTimeout(ctx, loop.Together(recheck))
	defer cancel()
	return pidfd.Wait(short)
}

// killAll kills every listed process with send until none is listed. afterRound, if any, is called after each round of signals.
func killAll(
	ctx context.Context,
	list func() ([]Process, error),
	send func(context.Context, Process) error,
	afterRound func() error,
) error {
	for {
		ps, err := list()
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(ps) == 0 {
			return nil
		}
		for _, p := range ps {
			if err := send(ctx, p); err != nil {
				return err
			}
		}
		if afterRound != nil {
			if err := afterRound(); err != nil {
				return err
			}
		}
		if err := waitOne(ctx, ps[0], nil); err != nil {
			return err
		}
	}
}

// sigkill sends SIGKILL to exactly this process.
func sigkill(ctx context.Context, p Process) error { return signal(ctx, p, unix.SIGKILL) }

// killLeft is send after the kernel has begun to kill the whole cgroup, which no security module refuses. One that does not take the
// signal of this process either got the kernel's or is named when the wait for its end is over.
func killLeft(send func(context.Context, Process) error) func(context.Context, Process) error {
	return func(ctx context.Context, p Process) error {
		err := send(ctx, p)
		if _, refused := errors.AsType[*procfs.RefusedError](err); refused {
			return nil
		}
		return err
	}
}

// signal sends a signal to exactly this process. One that has ended is no error.
func signal(ctx context.Context, p Process, sig unix.Signal) error {
	pidfd, err := procfs.OpenPidfd(p.PID, p.Start)
	if errors.Is(err, procfs.ErrNoProcess) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if err := pidfd.Signal(ctx, sig); err != nil && !errors.Is(err, procfs.ErrNoProcess) {
		return fmt.Errorf("cannot stop pid %d: %w", p.PID, err)
	}
	return nil
}

// pause sleeps for a state that the kernel reaches by itself and reports late or never. It sleeps in the kernel, because
// the Go runtime's timers round durations below a millisecond up to one.
func pause(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	// An early return does no harm: the caller reads the state again.
	_ = unix.Nanosleep(&ts, nil)
}
