package loop

import (
	"context"
	"sync"
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

// Loops that start at different moments and repeat every second wake up at the same moments, once a second each.
func TestLoopsWakeUpTogether(t *testing.T) {
	for _, every := range []time.Duration{500 * time.Millisecond, time.Second, 1300 * time.Millisecond, 3 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			moments := map[time.Duration]bool{}
			ctx, stop := context.WithCancel(t.Context())
			var g sync.WaitGroup
			start := time.Now()
			for i := range 20 {
				g.Go(func() {
					Pause(ctx, time.Duration(i)*13*time.Millisecond)
					for n := 0; ; n++ {
						began := time.Now()
						if !Every(ctx, every) {
							return
						}
						waited := time.Since(began)
						if waited > every+slewed || waited <= every-beat || every%beat == 0 && n > 0 && waited != every {
							t.Errorf("every %v: wait %d was %v", every, n, waited)
						}
						mu.Lock()
						moments[time.Since(start)] = true
						mu.Unlock()
					}
				})
			}
			Pause(ctx, 10*every)
			stop()
			g.Wait()
			if n := len(moments); n > 24 && every%beat == 0 || n > int(10*every/beat)+2 {
				t.Errorf("every %v: the process woke up at %d moments in ten rounds", every, n)
			}
		})
	}
	// The clock is corrected meanwhile: a timer that ends a millisecond before the quarter of a second.
	synctest.Test(t, func(t *testing.T) {
		Pause(t.Context(), beat-time.Millisecond)
		if d := Together(time.Second); d != time.Second+time.Millisecond {
			t.Errorf("the next wait is %v", d)
		}
	})
	if d := Together(400 * time.Millisecond); d != 400*time.Millisecond {
		t.Errorf("a short wait was changed to %v", d)
	}
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

func TestRestIsTenTimesTheWork(t *testing.T) {
	for worked, want := range map[time.Duration]time.Duration{
		0: 100 * time.Millisecond, 5 * time.Millisecond: 100 * time.Millisecond, 50 * time.Millisecond: 500 * time.Millisecond, time.Second: time.Second,
	} {
		if got := Rest(worked, 100*time.Millisecond, time.Second); got != want {
			t.Errorf("after %v it rests %v, want %v", worked, got, want)
		}
	}
}
