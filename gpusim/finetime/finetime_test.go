package finetime

import (
	"slices"
	"testing"
	"time"
)

// clock returns a clock that ends with the test.
func clock(t *testing.T) *Clock {
	t.Helper()
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestLateness checks that most timers are less than 0.3 ms late, which those of package time are not: it rounds up to a whole
// millisecond. A busy machine delays both, so a quarter of the timers is enough.
func TestLateness(t *testing.T) {
	c := clock(t)
	late := make([]time.Duration, 100)
	fired := make(chan struct{})
	for i := range late {
		due := time.Now().Add(200 * time.Microsecond)
		c.AfterFunc(200*time.Microsecond, func() {
			late[i] = time.Since(due)
			fired <- struct{}{}
		})
		<-fired
	}
	slices.Sort(late)
	if late[0] < 0 {
		t.Errorf("a timer fired %v early", -late[0])
	}
	if got := late[len(late)/4]; got > 300*time.Microsecond {
		t.Errorf("a quarter of the timers is at most %v late, want 300 µs; median %v, last %v", got, late[len(late)/2], late[len(late)-1])
	}
}

// TestSeveralTimers checks that each of several timers fires once and not early, whatever the order in which they were set.
func TestSeveralTimers(t *testing.T) {
	c := clock(t)
	const n = 20
	fired := make(chan int, 2*n)
	due := make([]time.Time, n)
	for i := range n {
		d := time.Duration(i*7%n) * 2 * time.Millisecond
		due[i] = time.Now().Add(d)
		c.AfterFunc(d, func() { fired <- i })
	}
	seen := map[int]bool{}
	for range n {
		i := <-fired
		if seen[i] || time.Now().Before(due[i]) {
			t.Errorf("timer %d fired early or twice", i)
		}
		seen[i] = true
	}
}

// TestStopAndReset checks that a stopped timer does not fire, and that a reset one fires once, at its last time.
func TestStopAndReset(t *testing.T) {
	c := clock(t)
	stopped := c.AfterFunc(time.Millisecond, func() { t.Error("a stopped timer fired") })
	if !stopped.Stop() || stopped.Stop() {
		t.Error("Stop says that the timer was not pending, or that it was twice")
	}
	fired := make(chan time.Time, 2)
	began := time.Now()
	x := c.AfterFunc(time.Hour, func() { fired <- time.Now() })
	if !x.Reset(5 * time.Millisecond) {
		t.Error("Reset says that the timer was not pending")
	}
	if at := <-fired; at.Sub(began) < 5*time.Millisecond {
		t.Errorf("fired after %v", at.Sub(began))
	}
	if x.Stop() {
		t.Error("Stop says that the timer is pending after it fired")
	}
	if x.Reset(0) {
		t.Error("Reset says that a timer that fired was pending")
	}
	<-fired
}

// TestClose checks that a closed clock calls nothing more.
func TestClose(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	c.AfterFunc(10*time.Millisecond, func() { t.Error("a timer of a closed clock fired") })
	c.Close()
	late := c.AfterFunc(0, func() { t.Error("a timer of a closed clock fired") })
	after := time.NewTimer(30 * time.Millisecond)
	<-after.C
	if !late.Stop() {
		t.Error("the timer is not pending")
	}
}
