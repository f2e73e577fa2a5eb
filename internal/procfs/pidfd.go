package procfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Pidfd holds one process: whatever becomes of its pid, a signal sent here reaches this process or none.
type Pidfd struct {
	pid int
	f   *os.File
}

// OpenPidfd takes hold of the process with this pid and start time. ErrNoProcess when it is not there any more. Close it.
func OpenPidfd(pid int, start uint64) (*Pidfd, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot hold process %d: %w", pid, err)
	}
	p := &Pidfd{pid: pid, f: os.NewFile(uintptr(fd), "pidfd")}
	// Only now that the process is held does its start time say that it is the one that was meant.
	s, err := Read(pid)
	if err == nil && s.Start != start {
		err = fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// PID is the process's pid.
func (p *Pidfd) PID() int { return p.pid }

// Signal sends a signal. ErrNoProcess when the process has ended and was reaped.
func (p *Pidfd) Signal(sig unix.Signal) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot signal process %d: %w", p.pid, err)
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return fmt.Errorf("cannot signal process %d: %w", p.pid, err)
	}
	if errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", p.pid, ErrNoProcess)
	}
	if sent != nil {
		return fmt.Errorf("cannot signal process %d: %w", p.pid, sent)
	}
	return nil
}

// Wait returns when the process has ended (reaped or not), or with ctx's error. It must not run twice at a time on one
// Pidfd.
func (p *Pidfd) Wait(ctx context.Context) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot wait for process %d: %w", p.pid, err)
	}
	if err := p.f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("cannot wait for process %d: %w", p.pid, err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		// It fails only on a closed file, and then the wait ends by itself.
		_ = p.f.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-interrupted // so that a later Wait's deadline is not overwritten by this one's
		}
	}()
	err = raw.Read(func(fd uintptr) bool { return readable(int(fd)) })
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return fmt.Errorf("cannot wait for process %d: %w", p.pid, err)
	}
}

// Ended tells whether the process has ended.
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
		return fmt.Errorf("cannot pass on process %d: %w", p.pid, err)
	}
	var used error
	if err := raw.Control(func(fd uintptr) { used = use(int(fd)) }); err != nil {
		return fmt.Errorf("cannot pass on process %d: %w", p.pid, err)
	}
	return used
}

// Close lets go of the process.
func (p *Pidfd) Close() error { return p.f.Close() }

// readable tells whether the descriptor's process has ended: that is what makes a pidfd readable.
func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}
