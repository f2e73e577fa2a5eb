package engine

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"
)

// ErrClosed is what waiting on a context that was closed, or whose engine was, returns.
var ErrClosed = errors.New("the context is closed")

// DefaultDepth is how many kernels a queue takes when nobody says.
const DefaultDepth = 1024

// Options of a context.
type Options struct {
	// Depth is how many unfinished kernels the queue takes; DefaultDepth when 0.
	Depth int
	// Share is the part of the engine that this context can fill while its group runs, above 0 up to 1: the MPS active
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
	rate    float64 // part of the engine it gets now; 0 while its queue is empty
	waiters []*waiter
	closed  bool
}

// waiter wants no more than limit unfinished kernels.
type waiter struct {
	limit int
	woken chan struct{}
}

// PID is the process that the context belongs to.
func (c *Context) PID() int { return c.acct.pid }

// SetDepth changes how many unfinished kernels the queue takes, at least 1. What is queued stays.
func (c *Context) SetDepth(n int) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.advanceLocked()
	c.depth = max(n, 1)
	c.e.scheduleLocked()
}

// Queued is the kernels not finished and the GPU time that they still need alone.
func (c *Context) Queued() (kernels int, work time.Duration) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.advanceLocked()
	return c.queue.kernels(), time.Duration(math.Round(c.queue.work()))
}

// TryLaunch queues as many of n kernels, each d of a whole engine, as there is room for, and returns how many.
func (c *Context) TryLaunch(d time.Duration, n int) int {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.advanceLocked()
	accepted := c.pushLocked(d, n)
	c.e.scheduleLocked()
	return accepted
}

// Launch queues n kernels, each d of a whole engine, and returns when the queue has taken all of them, which is before
// they have run. It returns ErrClosed when the context is closed, and why ctx ended when it did.
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
		// Waiting for room for half a queue, and not for one kernel, keeps the wakeups few while nothing drains.
		free := min(n, max(c.depth/2, 1))
		w := c.waitLocked(c.depth - free)
		c.e.scheduleLocked()
		c.e.mu.Unlock()
		if err := c.await(ctx, w); err != nil {
			return err
		}
	}
}

// Sync returns when everything queued has run.
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

// Close drops what is queued and takes the context off the engine. Waiting calls return ErrClosed. It may be called twice.
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
	if d > 0 { // a kernel of no length has run at once
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

// wakeLocked wakes those waiters whose wish is true now.
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
