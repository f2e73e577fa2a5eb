package worker

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// deadlineStep is how often the time of an operation that has not ended is counted.
	deadlineStep = 250 * time.Millisecond
	// deadlineLate is how late a timer may be in a process that runs. A later one was due while the process was stopped.
	deadlineLate = 100 * time.Millisecond
	// deadlineGrace is the least time to read an answer after the process was stopped.
	deadlineGrace = 500 * time.Millisecond
)

// deadline counts only the time in which this process runs. A process that was stopped, or whose host was, did not read the
// answer meanwhile, and the worker may have been stopped with it.
type deadline struct {
	left     time.Duration // that may still be counted
	last     time.Time     // when it was last counted
	extended bool
}

// next is how long to wait before count.
func (d *deadline) next() time.Duration { return min(d.left, deadlineStep) }

// count subtracts the time since the last count and reports whether no time is left. A process that was stopped gets
// deadlineGrace.
func (d *deadline) count(now time.Time) (over bool) {
	ran := now.Sub(d.last)
	d.last = now
	if next := d.next(); ran > next+deadlineLate {
		d.left -= next
		d.extend()
	} else {
		d.left -= ran
	}
	return d.left <= 0
}

// extend leaves at least deadlineGrace and reports whether it did: once, so that an operation that hangs is found.
func (d *deadline) extend() bool {
	if d.extended || d.left >= deadlineGrace {
		return false
	}
	d.extended, d.left = true, deadlineGrace
	return true
}

// unread reports whether the worker has sent something that was not read yet.
func unread(conn net.Conn) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	err = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return err == nil && n > 0
}

// bounded is a context that ends at a deadline, as one of context.WithTimeout does.
type bounded struct {
	context.Context

	mu    sync.Mutex // guards the fields below
	d     deadline
	timer *time.Timer
}

// within returns a context that ends after a time in which this process runs. The caller calls cancel.
func within(parent context.Context, limit time.Duration) (b *bounded, cancel func()) {
	ctx, end := context.WithCancelCause(parent)
	b = &bounded{Context: ctx, d: deadline{left: limit, last: time.Now()}}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(b.d.next(), func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.d.count(time.Now()) {
			end(context.DeadlineExceeded)
		} else if ctx.Err() == nil {
			b.timer.Reset(b.d.next())
		}
	})
	return b, func() {
		end(context.Canceled)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.timer.Stop()
	}
}

// Err implements context.Context.
func (b *bounded) Err() error {
	if b.Context.Err() == nil {
		return nil
	}
	return context.Cause(b.Context)
}

// left is the time until the end.
func (b *bounded) left() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.d.left - min(time.Since(b.d.last), b.d.next())
}
