package daemon

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// fedWatchdog is a service manager whose watchdog counts.
type fedWatchdog struct {
	notifier
	fed int
}

func (w *fedWatchdog) Watchdog() error               { w.fed++; return nil }
func (*fedWatchdog) WatchdogInterval() time.Duration { return time.Minute }

// The watchdog is fed only if the request was answered, and is not waited for beyond the half of its interval.
func TestTheWatchdogIsFedByAnswers(t *testing.T) {
	refused := errors.New("no answer")
	for name, c := range map[string]struct {
		answers func(context.Context) error
		want    error
		fed     int
	}{
		"an answer": {func(context.Context) error { return nil }, nil, 1},
		"an error":  {func(context.Context) error { return refused }, refused, 0},
		"neither":   {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, context.DeadlineExceeded, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, began := &fedWatchdog{}, time.Now()
			if err := (answering{w, c.answers}).Watchdog(); !errors.Is(err, c.want) || w.fed != c.fed {
				t.Errorf("%s: %v, and it was fed %d times", name, err, w.fed)
			}
			if d := time.Since(began); d > w.WatchdogInterval()/2 {
				t.Errorf("%s: it waited for %v", name, d)
			}
		})
	}
}
