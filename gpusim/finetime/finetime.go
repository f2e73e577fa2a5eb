// Package finetime has timers that are exact to some ten microseconds. Those of package time are up to a millisecond late in a
// program that waits for nothing else: the runtime waits with epoll, in whole milliseconds.
package finetime

import (
	"container/heap"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Clock starts timers. All share one timer of the kernel. Close ends it.
type Clock struct {
	file *os.File // a timerfd
	done chan struct{}

	mu      sync.Mutex
	pending timers
	set     time.Time // when the kernel's timer fires; zero: never
}

// Timer is a pending call of a function.
type Timer struct {
	clock *Clock
	f     func()
	at    time.Time
	index int // in pending; -1: it is not pending
}

// New returns a clock without timers.
func New() (*Clock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create a timer: %w", err)
	}
	c := &Clock{file: os.NewFile(uintptr(fd), "timerfd"), done: make(chan struct{})}
	go c.run()
	return c, nil
}

// Close drops all timers. Functions that were called may still run.
func (c *Clock) Close() {
	_ = c.file.Close()
	<-c.done
}

// AfterFunc calls f on a goroutine of its own when d has passed.
func (c *Clock) AfterFunc(d time.Duration, f func()) *Timer {
	t := &Timer{clock: c, f: f, index: -1}
	t.Reset(d)
	return t
}

// Stop prevents the call, and reports whether it was pending.
func (t *Timer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.stopLocked()
}

// Reset calls the function when d has passed from now, and reports whether a call was pending.
func (t *Timer) Reset(d time.Duration) bool {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	was := t.stopLocked()
	t.at = time.Now().Add(max(d, 0))
	heap.Push(&c.pending, t)
	c.setLocked()
	return was
}

// stopLocked leaves the kernel's timer as it is: if it fires for nothing, the next one is set.
func (t *Timer) stopLocked() bool {
	if t.index < 0 {
		return false
	}
	heap.Remove(&t.clock.pending, t.index)
	return true
}

// run calls the functions that are due.
func (c *Clock) run() {
	defer close(c.done)
	var expirations [8]byte
	for {
		if _, err := c.file.Read(expirations[:]); err != nil {
			return // closed
		}
		c.mu.Lock()
		c.set = time.Time{}
		for at := time.Now(); len(c.pending) != 0 && !c.pending[0].at.After(at); {
			go heap.Pop(&c.pending).(*Timer).f()
		}
		c.setLocked()
		c.mu.Unlock()
	}
}

// setLocked sets the kernel's timer to the first pending call, unless it fires before.
func (c *Clock) setLocked() {
	if len(c.pending) == 0 || !c.set.IsZero() && !c.pending[0].at.Before(c.set) {
		return
	}
	c.set = c.pending[0].at
	value := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(time.Until(c.set), 1)))} // 0 would disarm it
	raw, err := c.file.SyscallConn()
	if err != nil {
		return // closed
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), 0, &value, nil) }) // fails only for bad arguments
}

// timers are in the order of a heap: the first is the earliest.
type timers []*Timer

func (q timers) Len() int           { return len(q) }
func (q timers) Less(i, k int) bool { return q[i].at.Before(q[k].at) }
func (q timers) Swap(i, k int) {
	q[i], q[k] = q[k], q[i]
	q[i].index, q[k].index = i, k
}

// Push implements heap.Interface.
func (q *timers) Push(x any) {
	t := x.(*Timer)
	t.index = len(*q)
	*q = append(*q, t)
}

// Pop implements heap.Interface.
func (q *timers) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	t.index = -1
	(*q)[last] = nil
	*q = (*q)[:last]
	return t
}
