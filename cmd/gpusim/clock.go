package main

import (
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/gpusim/finetime"
)

// hostClock is the clock of a node that serves processes: kernels of a virtual GPU are as short as those of a real one, and
// the timers of package time are up to a millisecond late.
type hostClock struct {
	engine.SystemClock
	fine *finetime.Clock
}

// AfterFunc implements engine.Clock.
func (c hostClock) AfterFunc(d time.Duration, f func()) engine.Timer { return c.fine.AfterFunc(d, f) }
