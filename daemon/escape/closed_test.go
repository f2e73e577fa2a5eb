package escape

import (
	"testing"
	"time"
)

// The list of open devices takes 1 % of the time, and is never older than 10 s: a single list that waited for a processor does not
// keep a process that has a device open from being found.
func TestOpenersPause(t *testing.T) {
	for _, c := range []struct{ duration, pause time.Duration }{
		{0, 2 * time.Second},
		{20 * time.Millisecond, 2 * time.Second},
		{50 * time.Millisecond, 5 * time.Second},
		{300 * time.Millisecond, 10 * time.Second},
		{2 * time.Second, 10 * time.Second},
	} {
		if got := openersPause(c.duration); got != c.pause {
			t.Errorf("after a list of %v: %v, want %v", c.duration, got, c.pause)
		}
	}
}
