// Package loop has what the daemon's background loops need: a group of goroutines, a wake-up, and the wait for a timer or a
// wake-up. It decides nothing.
package loop

import (
	"context"
	"sync"
	"time"
)

// Group is a group of goroutines with one context. Wait returns when the last one has ended. Begin must be called before
// the first Go.
type Group struct {
	ctx context.Context
	wg  sync.WaitGroup
}

// Begin sets the context of the group.
func (g *Group) Begin(ctx context.Context) { g.ctx = ctx }

// Context ends when the goroutines must end. Before Begin it never ends.
func (g *Group) Context() context.Context {
	if g.ctx == nil {
		return context.Background()
	}
	return g.ctx
}

// Stopping reports whether the context has ended.
func (g *Group) Stopping() bool { return g.ctx != nil && g.ctx.Err() != nil }

// Go starts a goroutine of the group.
func (g *Group) Go(f func()) { g.wg.Go(f) }

// Wait waits until all of them have ended.
func (g *Group) Wait() { g.wg.Wait() }

// Wake is a wake-up for one loop. Any number of calls of Set before the loop runs cause one pass. Set may be called with any
// lock held.
type Wake struct{ c chan struct{} }

// NewWake returns a wake-up.
func NewWake() Wake { return Wake{c: make(chan struct{}, 1)} }

// Set wakes the loop. On the zero value it does nothing.
func (w Wake) Set() {
	select {
	case w.c <- struct{}{}:
	default: // One pass is due already.
	}
}

// C is the channel that the loop waits for.
func (w Wake) C() <-chan struct{} { return w.c }

// Sleep waits until d has passed, the wake-up is set, or ctx ends. woken: the wake-up ended the wait; ok is false when ctx
// ended.
func (w Wake) Sleep(ctx context.Context, d time.Duration) (woken, ok bool) {
	timer := NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, false
	case <-timer.C():
		return false, true
	case <-w.c:
		return true, true
	}
}

const (
	// beat is what the waits of loops that repeat end on.
	beat = 250 * time.Millisecond
	// slewed is how much earlier than the system clock a timer may end, because the clock is being corrected.
	slewed = 2 * time.Millisecond
)

// Together changes a wait of half a second or more so that it ends on a quarter of a second of the system clock: up to that much
// earlier, and at most 2 ms later. Loops that repeat then wake up at the same moments: a process that wakes up once for several
// loops takes less of the CPU. A loop that waits for whole quarters of a second waits each time for the same time.
func Together(d time.Duration) time.Duration {
	if d < 2*beat {
		return d
	}
	now := time.Duration(time.Now().UnixNano()) % beat
	late := (now + d + slewed) % beat
	return d + slewed - late
}

// Every is Sleep for a loop that repeats about every d: see Together.
func (w Wake) Every(ctx context.Context, d time.Duration) (woken, ok bool) {
	return w.Sleep(ctx, Together(d))
}

// restFactor is how many times longer a loop rests than it worked.
const restFactor = 10

// Rest is how long a loop that others wake rests after work of this length, so that the work takes no more than a tenth of the
// time however often it is woken; from least to most.
func Rest(worked, least, most time.Duration) time.Duration {
	return min(max(restFactor*worked, least), most)
}

// Every is Pause for a loop that repeats about every d: see Together.
func Every(ctx context.Context, d time.Duration) bool { return Pause(ctx, Together(d)) }

// Pause waits until d has passed, and returns false when ctx ended before.
func Pause(ctx context.Context, d time.Duration) bool {
	_, ok := Wake{}.Sleep(ctx, d)
	return ok
}
