package procfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Pidfd refers to one process. A signal reaches this process or none, also when its pid is reused.
type Pidfd struct {
	pid int
	f   *os.File
}

// OpenPidfd opens the process with this pid and start time. ErrNoProcess when it has exited. The caller must close it.
func OpenPidfd(pid int, start uint64) (*Pidfd, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("pid %d: %w", pid, ErrNoProcess)
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("pid %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open a pidfd of pid %d: %w", pid, err)
	}
	p := &Pidfd{pid: pid, f: os.NewFile(uintptr(fd), "pidfd")}
	// A pidfd does not reserve the pid. If the process with this start time has it after the open, it had it at the open, because
	// the caller knew it before.
	s, err := Read(pid)
	if err == nil && s.Start != start {
		err = fmt.Errorf("pid %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// PID is the process's pid.
func (p *Pidfd) PID() int { return p.pid }

// Signal sends a signal: itself, or by the relay of UseRelay, for which it waits until ctx ends. ErrNoProcess when the process has
// exited and was reaped, a RefusedError when a security module refuses it, ctx's error when it ended before the relay sent it.
func (p *Pidfd) Signal(ctx context.Context, sig unix.Signal) error {
	s := signals.Load()
	if s == nil {
		s = &directly
	}
	return p.signalBy(ctx, s, sig)
}

func (p *Pidfd) signalBy(ctx context.Context, s *signaller, sig unix.Signal) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot signal pid %d: %w", p.pid, err)
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = s.deliver(ctx, p.pid, int(fd), sig) }); err != nil {
		return fmt.Errorf("cannot signal pid %d: %w", p.pid, err)
	}
	if errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("pid %d: %w", p.pid, ErrNoProcess)
	}
	if refused, ok := errors.AsType[*RefusedError](sent); ok {
		return refused // It says all.
	}
	if sent != nil {
		return fmt.Errorf("cannot signal pid %d: %w", p.pid, sent)
	}
	return nil
}

// Terminate sends SIGTERM, and SIGCONT after it: a stopped process (SIGSTOP, or job control) handles no signal until it is continued.
// In this order the process has the SIGTERM when it continues, and executes nothing of its program before it handles it. A process
// that is not stopped ignores SIGCONT, unless it handles it. The service manager does the same (systemd.kill(5)).
func (p *Pidfd) Terminate(ctx context.Context) error {
	if err := p.Signal(ctx, unix.SIGTERM); err != nil {
		return err
	}
	if err := p.Signal(ctx, unix.SIGCONT); err != nil && !errors.Is(err, ErrNoProcess) {
		return err
	}
	return nil // It may have ended of the first one.
}

// Wait returns when the process has exited (reaped or not), or with ctx's error. At most one Wait may run on a Pidfd at a
// time.
func (p *Pidfd) Wait(ctx context.Context) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot wait for pid %d: %w", p.pid, err)
	}
	if err := p.f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("cannot wait for pid %d: %w", p.pid, err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		// It fails only on a closed file, and then the wait ends too.
		_ = p.f.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-interrupted // so that this one cannot overwrite the deadline of a later Wait
		}
	}()
	err = raw.Read(func(fd uintptr) bool { return readable(int(fd)) })
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return fmt.Errorf("cannot wait for pid %d: %w", p.pid, err)
	}
}

// Ended reports whether the process has exited.
func (p *Pidfd) Ended() bool {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return false
	}
	var ended bool
	if err := raw.Control(func(fd uintptr) { ended = readable(int(fd)) }); err != nil {
		return false
	}
	return ended
}

// Pass calls use with the descriptor, which stays open until use returns.
func (p *Pidfd) Pass(use func(fd int) error) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot pass on pid %d: %w", p.pid, err)
	}
	var used error
	if err := raw.Control(func(fd uintptr) { used = use(int(fd)) }); err != nil {
		return fmt.Errorf("cannot pass on pid %d: %w", p.pid, err)
	}
	return used
}

// Close closes the descriptor.
func (p *Pidfd) Close() error { return p.f.Close() }

// readable reports whether the process has exited: then its pidfd is readable (pidfd_open(2)).
func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}
