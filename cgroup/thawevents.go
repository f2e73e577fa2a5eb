package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// thawEvents waits for what starts a pass of gpushare-thaw: a write to the file of deadlines, the exit of the process that
// froze scopes, a time, or the end. One goroutine uses it.
type thawEvents struct {
	name    string
	inotify int
	watched int // of the file; -1: not watched
	end     int // readable when ctx ends
	stop    func() bool
	ended   chan struct{} // closed when end was written

	by    Process
	pidfd *procfs.Pidfd // of by; nil: none
}

// newThawEvents returns the events of a file.
func newThawEvents(ctx context.Context, name string) (*thawEvents, error) {
	inotify, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot watch %s: %w", name, err)
	}
	end, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		unix.Close(inotify)
		return nil, fmt.Errorf("cannot watch %s: %w", name, err)
	}
	e := &thawEvents{name: name, inotify: inotify, watched: -1, end: end, ended: make(chan struct{})}
	e.stop = context.AfterFunc(ctx, func() {
		defer close(e.ended)
		_, _ = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // It can only fail when the counter is full.
	})
	return e, nil
}

func (e *thawEvents) close() {
	if !e.stop() {
		<-e.ended
	}
	unix.Close(e.inotify)
	unix.Close(e.end)
	if e.pidfd != nil {
		e.pidfd.Close()
	}
}

// watch starts to watch the file. While scopes are frozen it is not watched: each write would be an event.
func (e *thawEvents) watch() error {
	var err error
	e.watched, err = unix.InotifyAddWatch(e.inotify, e.name, unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF)
	if err != nil {
		e.watched = -1
		return fmt.Errorf("cannot watch %s: %w", e.name, err)
	}
	return nil
}

func (e *thawEvents) watching() bool { return e.watched >= 0 }

// ignore ends the watch.
func (e *thawEvents) ignore() {
	if e.watching() {
		_, _ = unix.InotifyRmWatch(e.inotify, uint32(e.watched)) // It fails when the file was removed, which the next pass reports.
		e.watched = -1
	}
	e.read()
}

// read discards the events: a pass reads the whole file.
func (e *thawEvents) read() {
	var buf [4096]byte
	for {
		if n, err := unix.Read(e.inotify, buf[:]); n <= 0 || err != nil {
			return
		}
	}
}

// wait returns when it is time for the next pass. next 0 means no limit.
func (e *thawEvents) wait(next time.Duration, by Process) error {
	if exited := e.follow(by); exited {
		return nil
	}
	fds := []unix.PollFd{{Fd: int32(e.end), Events: unix.POLLIN}, {Fd: int32(e.inotify), Events: unix.POLLIN}}
	poll := func() error {
		timeout := -1
		if next > 0 {
			timeout = int((next + time.Millisecond - 1) / time.Millisecond)
		}
		_, err := unix.Poll(fds, timeout)
		return err
	}
	var err error
	if e.pidfd == nil {
		err = poll()
	} else {
		err = e.pidfd.Pass(func(fd int) error {
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			return poll()
		})
	}
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("cannot wait: %w", os.NewSyscallError("poll", err))
	}
	if fds[1].Revents != 0 {
		e.read()
	}
	return nil
}

// follow selects the process whose exit is an event, and reports whether it has exited since the pass that found it.
func (e *thawEvents) follow(by Process) (exited bool) {
	if e.by == by && (by == Process{} || e.pidfd != nil) {
		return false
	}
	if e.pidfd != nil {
		e.pidfd.Close()
	}
	e.by, e.pidfd = by, nil
	if by == (Process{}) {
		return false
	}
	p, err := procfs.OpenPidfd(by.PID, by.Start)
	if err == nil {
		e.pidfd = p
	}
	return errors.Is(err, procfs.ErrNoProcess) // After another error the time of the next pass applies.
}
