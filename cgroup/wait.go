package cgroup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/procfs"
)

const (
	// recheck bounds how long one process is waited for before the list is read again: a process may leave its cgroup
	// and live on, and a process tree grows.
	recheck = time.Second
	// pollPause is the pause between two looks at what the kernel finishes in a fraction of a millisecond.
	pollPause = 50 * time.Microsecond
)

// waitNone returns when list is empty or says ErrNotFound. It sleeps on one of the processes by its pidfd: that is
// immediate, while the kernel holds notifications of cgroup.events back by up to 10 ms and loses the last one of a
// cgroup that is removed at once.
func waitNone(ctx context.Context, list func() ([]Process, error)) error {
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
		if err := waitOne(ctx, ps[0]); err != nil {
			return err
		}
	}
}

// waitOne returns when the process has ended or it is time to look again.
func waitOne(ctx context.Context, p Process) error {
	pidfd, err := procfs.OpenPidfd(p.PID, p.Start)
	if errors.Is(err, procfs.ErrNoProcess) {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if pidfd.Ended() {
		// It has ended and is still listed: a zombie's threads, or the kernel has not counted it out yet.
		pause(time.Millisecond)
		return ctx.Err()
	}
	short, cancel := context.WithTimeout(ctx, recheck)
	defer cancel()
	err = pidfd.Wait(short)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// killAll kills every listed process until none is listed. wake, if any, is called after each round of signals.
func killAll(ctx context.Context, list func() ([]Process, error), afterRound func() error) error {
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
			if err := signal(p, unix.SIGKILL); err != nil {
				return err
			}
		}
		if afterRound != nil {
			if err := afterRound(); err != nil {
				return err
			}
		}
		if err := waitOne(ctx, ps[0]); err != nil {
			return err
		}
	}
}

// signal sends a signal to exactly this process. One that has ended is no error.
func signal(p Process, sig unix.Signal) error {
	pidfd, err := procfs.OpenPidfd(p.PID, p.Start)
	if errors.Is(err, procfs.ErrNoProcess) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if err := pidfd.Signal(sig); err != nil && !errors.Is(err, procfs.ErrNoProcess) {
		return fmt.Errorf("cannot stop process %d: %w", p.PID, err)
	}
	return nil
}

// pause waits a fixed moment, for what the kernel finishes by itself and announces late or never. It sleeps in the
// kernel: the runtime's timers round what is shorter than a millisecond up to one.
func pause(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	// Interrupted early is no harm: the caller looks again anyway.
	_ = unix.Nanosleep(&ts, nil)
}
