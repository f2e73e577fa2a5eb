package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
)

// TestSwitching checks how long a short kernel waits next to a program that always has work: its own time twice when groups share the
// engine at any time, a turn of the other for each of its own, or a whole kernel of the other.
func TestSwitching(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name        string
		switching   engine.Switching
		kernel      time.Duration // of the other program
		least, most time.Duration
	}{
		{"at any time", engine.Switching{}, 200 * ms, 10 * ms, 10 * ms},
		{"slices of 2 ms", engine.Switching{Slice: 2 * ms}, 200 * ms, 9 * ms, 11 * ms},
		{"whole kernels of 5 ms", engine.Switching{Slice: 2 * ms, Whole: true}, 5 * ms, 5 * ms, 10 * ms},
		{"whole kernels of 200 ms", engine.Switching{Slice: 2 * ms, Whole: true}, 200 * ms, 5 * ms, 205 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := engine.New(engine.SystemClock{})
				defer e.Close()
				e.SwitchBy(c.switching)
				other := e.AddContext(1, "", engine.Options{Depth: 10})
				go run(other, c.kernel)
				short := e.AddContext(2, "", engine.Options{})
				var longest time.Duration
				for range 100 {
					time.Sleep(45*ms + 137*time.Microsecond) // the host's part of a request, in the virtual time of the bubble
					start := time.Now()
					if err := short.Launch(context.Background(), 5*ms, 1); err != nil {
						t.Fatal(err)
					}
					if err := short.Sync(context.Background()); err != nil {
						t.Fatal(err)
					}
					waited := time.Since(start)
					if waited < c.least-time.Microsecond || waited > c.most+time.Microsecond {
						t.Errorf("a kernel of 5 ms waited %v, want %v to %v", waited, c.least, c.most)
					}
					longest = max(longest, waited)
				}
				if longest < c.most-c.most/4 {
					t.Errorf("the longest waited %v, want about %v", longest, c.most)
				}
			})
		})
	}
}

// TestSwitchingIsEqual checks that groups that always have work have equal parts in slices, and that nothing is lost.
func TestSwitchingIsEqual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.SystemClock{})
		defer e.Close()
		e.SwitchBy(engine.Switching{Slice: 2 * time.Millisecond})
		for pid := 1; pid <= 3; pid++ {
			go run(e.AddContext(pid, "", engine.Options{Depth: 20}), time.Duration(pid)*3*time.Millisecond)
		}
		time.Sleep(6 * time.Second) // In the virtual time of the bubble: what is measured is the parts of a time.
		for _, busy := range e.Busy() {
			near(t, "busy", busy, 2*time.Second, 5*time.Millisecond)
		}
	})
}

func TestSwitchingValidate(t *testing.T) {
	for _, c := range []struct {
		switching engine.Switching
		ok        bool
	}{
		{engine.Switching{}, true},
		{engine.Switching{Slice: 2 * time.Millisecond, Whole: true}, true},
		{engine.Switching{Whole: true}, false},
		{engine.Switching{Slice: -1}, false},
		{engine.Switching{Slice: 2 * time.Second}, false},
	} {
		if err := c.switching.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.switching, err)
		}
	}
}

// TestSwitchingStarvesNoGroup checks that a group with work has its turns next to others whose work comes and goes all the time.
func TestSwitchingStarvesNoGroup(t *testing.T) {
	const ms = time.Millisecond
	for _, whole := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e := engine.New(engine.SystemClock{})
			defer e.Close()
			e.SwitchBy(engine.Switching{Slice: 2 * ms, Whole: whole})
			go run(e.AddContext(1, "", engine.Options{Depth: 10}), 5*ms)
			for pid := 2; pid <= 7; pid++ {
				c := e.AddContext(pid, "", engine.Options{})
				go func() {
					for c.Launch(context.Background(), ms, 1) == nil && c.Sync(context.Background()) == nil {
					}
				}()
			}
			time.Sleep(10 * time.Second) // in the virtual time of the bubble
			if busy := e.Busy()[1]; busy < time.Second {
				t.Errorf("whole kernels %v: it ran for %v of 10 s next to six others", whole, busy)
			}
		})
	}
}
