package engine

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"
)

// ErrClosed is returned by calls on a closed context, or on a context of a closed engine.
var ErrClosed = errors.New("the context is closed")

// DefaultDepth is the default queue depth in kernels.
const DefaultDepth = 1024

// Options of a context.
type Options struct {
	// Depth is how many unfinished kernels the queue accepts; DefaultDepth when 0.
	Depth int
	// Share is the part of the engine that this context can use while its group runs, above 0 up to 1: the MPS active
	// thread percentage. 0 is 1.
	Share float64
}

// Context is one process's queue on the engine. Its methods may be called concurrently.
type Context struct {
	e     *Engine
	acct  *account
	group *group

	// Guarded by e.mu.
	depth   int
	share   float64
	queue   queue
	active  bool    // its queue is not empty
	rate    float64 // current part of the engine; 0 while its queue is empty or another group runs
	waiters []*waiter
	closed  bool
}

// waiter waits until at most limit kernels are unfinished.
type waiter struct {
	limit int
	woken chan struct{}
}

// PID is the process that the context belongs to.
func (c *Context) PID() int { return c.acct.pid }

// SetDepth changes how many unfinished kernels the queue accepts, at least 1. Queued kernels stay in the queue.
func (c *Context) SetDepth(n int) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.advanceLocked()
	c.depth = max(n, 1)
	c.e.scheduleLocked()
}

// Queued returns the number of unfinished kernels and the GPU time that they still need.
func (c *Context) Queued() (kernels int, work time.Duration) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.advanceLocked()
	return c.queue.kernels(), time.Duration(math.Round(c.queue.work()))
}

// TryLaunch queues up to n kernels, each d of a whole engine, as far as they fit, and returns how many.
func (c *Context) TryLaunch(d time.Duration, n int) int {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.advanceLocked()
	accepted := c.pushLocked(d, n)
	c.e.scheduleLocked()
	return accepted
}

// Launch queues n kernels, each d of a whole engine, and returns when all of them are in the queue, which is before they
// have run. It returns ErrClosed when the context is closed, and the error of ctx when ctx ends.
func (c *Context) Launch(ctx context.Context, d time.Duration, n int) error {
	for {
		c.e.mu.Lock()
		c.e.advanceLocked()
		if c.endedLocked() {
			c.e.mu.Unlock()
			return ErrClosed
		}
		n -= c.pushLocked(d, n)
		if n <= 0 {
			c.e.scheduleLocked()
			c.e.mu.Unlock()
			return nil
		}
		// Waiting until half of the queue is free, not for one kernel, reduces the number of wakeups.
		free := min(n, max(c.depth/2, 1))
		w := c.waitLocked(c.depth - free)
		c.e.scheduleLocked()
		c.e.mu.Unlock()
		if err := c.await(ctx, w); err != nil {
			return err
		}
	}
}

// Sync returns when all queued kernels have run.
func (c *Context) Sync(ctx context.Context) error {
	c.e.mu.Lock()
	c.e.advanceLocked()
	if c.endedLocked() {
		c.e.mu.Unlock()
		return ErrClosed
	}
	if len(c.queue.batches) == 0 {
		c.e.scheduleLocked()
		c.e.mu.Unlock()
		return nil
	}
	w := c.waitLocked(0)
	c.e.scheduleLocked()
	c.e.mu.Unlock()
	return c.await(ctx, w)
}

// Close drops the queued kernels and removes the context from the engine. Waiting calls return ErrClosed. It may be
// called twice.
func (c *Context) Close() {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.advanceLocked()
	c.closeLocked()
	c.e.scheduleLocked()
}

func (c *Context) closeLocked() {
	if c.closed {
		return
	}
	c.closed = true
	c.queue = queue{}
	c.e.idleLocked(c)
	for _, w := range c.waiters {
		close(w.woken)
	}
	c.waiters = nil
	delete(c.e.waiting, c)
	c.acct.contexts--
	c.acct.lastClosed = c.e.now
	c.group.contexts--
	if c.group.contexts == 0 {
		delete(c.e.groups, c.group.name)
	}
}

func (c *Context) pushLocked(d time.Duration, n int) int {
	n = min(n, c.depth-c.queue.kernels())
	if n <= 0 || c.endedLocked() {
		return 0
	}
	if d > 0 { // a kernel without duration ends at once
		c.queue.push(float64(d), n)
		c.e.busyLocked(c)
	}
	return n
}

func (c *Context) endedLocked() bool { return c.closed || c.e.closed }

func (c *Context) waitLocked(limit int) *waiter {
	w := &waiter{limit: limit, woken: make(chan struct{})}
	c.waiters = append(c.waiters, w)
	c.e.waiting[c] = struct{}{}
	return w
}

func (c *Context) await(ctx context.Context, w *waiter) error {
	select {
	case <-w.woken:
	case <-ctx.Done():
		c.e.mu.Lock()
		defer c.e.mu.Unlock()
		c.waiters = slices.DeleteFunc(c.waiters, func(x *waiter) bool { return x == w })
		if len(c.waiters) == 0 {
			delete(c.e.waiting, c)
		}
		return ctx.Err()
	}
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	return nil
}

// wakeLocked wakes the waiters whose condition is true.
func (c *Context) wakeLocked() {
	left := c.queue.kernels()
	c.waiters = slices.DeleteFunc(c.waiters, func(w *waiter) bool {
		if left > w.limit {
			return false
		}
		close(w.woken)
		return true
	})
	if len(c.waiters) == 0 {
		delete(c.e.waiting, c)
	}
}
