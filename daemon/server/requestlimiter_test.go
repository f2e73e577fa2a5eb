package server

import (
	"context"
	"testing"
	"testing/synctest"
)

// One user's requests run some at a time, another's at once, and root's always.
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
				t.Errorf("user %d has no turn: %v", uid, err)
			}
			done()
		}
		// One that gives up takes nobody's turn.
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if _, err := x.acquire(ctx, 1000); err == nil {
			t.Error("who gave up has a turn")
		}
		for range many {
			(<-running)()
			synctest.Wait()
			if len(running) > maxRunning {
				t.Errorf("%d run at a time", len(running))
			}
		}
		if len(x.byUID) != 0 {
			t.Errorf("%d users are remembered who ask nothing", len(x.byUID))
		}
	})
}
