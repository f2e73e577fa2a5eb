package server

import (
	"context"
	"testing"
	"testing/synctest"
)

// The requests of one user are limited; those of another user run at once, and those of root always.
func TestRequestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x requestLimiter
		const many = 3 * maxRunning
		running := make(chan func(), many)
		for range many {
			go func() {
				done, err := x.acquire(t.Context(), 1000)
				if err != nil {
					t.Error(err)
				}
				running <- done
			}()
		}
		synctest.Wait()
		if len(running) != maxRunning {
			t.Errorf("%d run at a time, want %d", len(running), maxRunning)
		}
		for _, uid := range []int{0, 1001} {
			done, err := x.acquire(t.Context(), uid)
			if err != nil {
				t.Errorf("a request of user %d does not run: %v", uid, err)
			}
			done()
		}
		// A canceled request takes no slot.
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if _, err := x.acquire(ctx, 1000); err == nil {
			t.Error("a canceled request runs")
		}
		for range many {
			(<-running)()
			synctest.Wait()
			if len(running) > maxRunning {
				t.Errorf("%d run at a time", len(running))
			}
		}
		if len(x.byUID) != 0 {
			t.Errorf("%d users without a request are kept", len(x.byUID))
		}
	})
}
