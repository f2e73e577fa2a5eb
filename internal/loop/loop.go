// Package loop has what every part of the daemon that runs by itself is made of: a group that owns its goroutines, a
// wake-up, and the wait for a timer or a wake-up. It decides nothing.
package loop

import (
	"context"
	"sync"
	"time"
)

// Group owns goroutines: they get its context, and Wait returns when the last has ended. Begin must be called before the
// first Go.
type Group struct {
	ctx context.Context
	wg  sync.WaitGroup
}

// Begin gives the group the context that its goroutines end with.
func (g *Group) Begin(ctx context.Context) { g.ctx = ctx }

// Context ends when the goroutines are to end. Before Begin it never ends.
func (g *Group) Context() context.Context {
	if g.ctx == nil {
		return context.Background()
	}
	return g.ctx
}

// Stopping tells whether the goroutines are told to end.
func (g *Group) Stopping() bool { return g.ctx != nil && g.ctx.Err() != nil }

// Go starts a goroutine of the group.
func (g *Group) Go(f func()) { g.wg.Go(f) }

// Wait waits until all of them have ended.
func (g *Group) Wait() { g.wg.Wait() }

// Wake is a wake-up for one loop. Any number of calls of Set before the loop looks make one pass. It may be set with any
// lock held: it calls nobody.
type Wake struct{ c chan struct{} }

// NewWake makes a wake-up.
func NewWake() Wake { return Wake{c: make(chan struct{}, 1)} }

// Set wakes the loop. A nil wake-up wakes nobody.
func (w Wake) Set() {
	select {
	case w.c <- struct{}{}:
	default: // One pass is due already.
	}
}

// C is what the loop waits for.
func (w Wake) C() <-chan struct{} { return w.c }

// Sleep waits until d is over, the wake-up is set, or ctx ends. It tells whether the wake-up ended the wait; ok is false
// when ctx did.
func (w Wake) Sleep(ctx context.Context, d time.Duration) (woken, ok bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, false
	case <-timer.C:
		return false, true
	case <-w.c:
		return true, true
	}
}

// Pause waits until d is over, and tells false when ctx ended before.
func Pause(ctx context.Context, d time.Duration) bool {
	_, ok := Wake{}.Sleep(ctx, d)
	return ok
}
