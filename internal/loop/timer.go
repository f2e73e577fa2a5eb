package loop

import (
	"sync/atomic"
	"time"
)

// Timer is a timer of one loop: that of the Go runtime, or of KernelTimers where the program uses them. One goroutine uses it.
type Timer struct {
	runtime *time.Timer
	kernel  *kernelTimers

	// Guarded by the lock of kernel.
	c     chan time.Time // of capacity 1
	when  time.Time
	place int // in the heap, from 1; 0: not in it
}

// kernelClock has the timers of the kernel, once the program uses them.
var kernelClock atomic.Pointer[kernelTimers]

// NewTimer returns a timer that ends after d.
func NewTimer(d time.Duration) *Timer {
	k := kernelClock.Load()
	if k == nil {
		return &Timer{runtime: time.NewTimer(d)}
	}
	t := &Timer{kernel: k, c: make(chan time.Time, 1)}
	k.set(t, d)
	return t
}

// C is the channel that gets a value when the time has passed.
func (t *Timer) C() <-chan time.Time {
	if t.runtime != nil {
		return t.runtime.C
	}
	return t.c
}

// Reset lets the timer end after d, and forgets that it has ended before.
func (t *Timer) Reset(d time.Duration) {
	if t.runtime != nil {
		t.runtime.Reset(d)
		return
	}
	t.kernel.set(t, d)
}

// Stop ends the timer: C gets nothing any more.
func (t *Timer) Stop() {
	if t.runtime != nil {
		t.runtime.Stop()
		return
	}
	t.kernel.remove(t)
}
