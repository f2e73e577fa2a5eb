package instances

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe/observetest"
)

// An idle instance keeps its time. The time starts again when the instance was used or created again.
func TestIdleIsKept(t *testing.T) {
	x := idleInstances{}
	a, b := idleKey{observetest.One, gpu.Placement{Start: 0, Size: 1}, 1}, idleKey{observetest.One, gpu.Placement{Start: 1, Size: 1}, 2}
	again := idleKey{observetest.One, a.placement, 3}
	keep := func(gpu.UUID) time.Duration { return time.Minute }
	start := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		seconds  int
		unneeded []idleKey
		remove   int
		next     time.Duration
	}{
		{0, []idleKey{a}, 0, time.Minute},
		{20, []idleKey{a, b}, 0, 40 * time.Second},
		{30, []idleKey{b}, 0, 50 * time.Second}, // a is in use.
		{40, []idleKey{a, b}, 0, 40 * time.Second},
		{80, []idleKey{a, b}, 1, 20 * time.Second},
		{90, []idleKey{again}, 0, time.Minute}, // An instance that was created in the place of a.
	} {
		x.note(c.unneeded, at(c.seconds))
		remove, next := x.due(keep, at(c.seconds))
		if len(remove[observetest.One]) != c.remove || next != c.next {
			t.Errorf("after %d s %v are due and the next in %s, want %d and %s", c.seconds, remove, next, c.remove, c.next)
		}
	}
}
