package loop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSleepEndsByWhatComesFirst(t *testing.T) {
	for _, c := range []struct {
		name      string
		before    func(w Wake, stop context.CancelFunc)
		woken, ok bool
		after     time.Duration
	}{
		{"the timer", func(Wake, context.CancelFunc) {}, false, true, time.Second},
		{"a wake-up before the wait", func(w Wake, _ context.CancelFunc) { w.Set() }, true, true, 0},
		{"a wake-up during the wait", func(w Wake, _ context.CancelFunc) { time.AfterFunc(time.Millisecond, w.Set) }, true, true, time.Millisecond},
		{"the end", func(_ Wake, stop context.CancelFunc) { time.AfterFunc(time.Millisecond, stop) }, false, false, time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				w, began := NewWake(), time.Now()
				c.before(w, stop)
				woken, ok := w.Sleep(ctx, time.Second)
				if woken != c.woken || ok != c.ok || time.Since(began) != c.after {
					t.Errorf("woken %v, ok %v, after %v", woken, ok, time.Since(began))
				}
			})
		})
	}
}

// Any number of wake-ups makes one pass, and Set never waits.
func TestManyWakeUpsMakeOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWake()
		for range 3 {
			w.Set()
		}
		if woken, _ := w.Sleep(t.Context(), time.Second); !woken {
			t.Error("the wake-ups are lost")
		}
		if woken, _ := w.Sleep(t.Context(), time.Second); woken {
			t.Error("one wake-up makes two passes")
		}
		Wake{}.Set() // Nothing happens, without waiting.
	})
}

func TestGroupWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		if g.Stopping() || g.Context().Err() != nil {
			t.Error("it stops before it begins")
		}
		ctx, stop := context.WithCancel(t.Context())
		g.Begin(ctx)
		ended := false
		g.Go(func() {
			ended = !Pause(g.Context(), time.Hour)
		})
		stop()
		g.Wait()
		if !ended || !g.Stopping() {
			t.Errorf("ended %v, stopping %v", ended, g.Stopping())
		}
	})
}
