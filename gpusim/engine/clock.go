package engine

import "time"

// Clock is the time source of an engine.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f on a goroutine of its own when d has passed.
	AfterFunc(d time.Duration, f func()) Timer
}

// DatedClock is a clock whose date can be set: Now passes steadily, and Date jumps. The times of samples since 1970 follow
// Date.
type DatedClock interface {
	Clock
	Date() time.Time
}

// Timer is a pending call; *time.Timer is one.
type Timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// SystemClock is the clock of package time, which is the fake clock in a testing/synctest bubble.
type SystemClock struct{}

// Now is time.Now.
func (SystemClock) Now() time.Time { return time.Now() }

// Date is time.Now without its monotonic reading.
func (SystemClock) Date() time.Time { return time.Now().Round(0) }

// AfterFunc is time.AfterFunc.
func (SystemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }
