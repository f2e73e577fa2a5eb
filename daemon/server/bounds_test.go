package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
)

// The requests of one user are limited; those of another user run at once, and those of root always.
func TestBoundPerUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x limiter
		b := Bound{Kind: "reads", Most: 4}
		const many = 12
		running := make(chan *slot, many)
		for range many {
			go func() {
				s, err := x.acquire(t.Context(), &b, 1000)
				if err != nil {
					t.Error(err)
				}
				running <- s
			}()
		}
		synctest.Wait()
		if len(running) != b.Most {
			t.Errorf("%d run at a time, want %d", len(running), b.Most)
		}
		for _, uid := range []int{0, 1001} {
			s, err := x.acquire(t.Context(), &b, uid)
			if err != nil {
				t.Errorf("a request of user %d does not run: %v", uid, err)
			}
			s.release()
		}
		// A canceled request takes no place.
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if _, err := x.acquire(ctx, &b, 1000); err == nil {
			t.Error("a canceled request runs")
		}
		for range many {
			(<-running).release()
			synctest.Wait()
			if len(running) > b.Most {
				t.Errorf("%d run at a time", len(running))
			}
		}
		if len(x.kinds) != 0 {
			t.Errorf("%d kinds without a request are kept", len(x.kinds))
		}
	})
}

// A request that lasts as long as its caller wants does not wait: it is refused, with the number.
func TestBoundOfLastingRequests(t *testing.T) {
	var x limiter
	b := Bound{Kind: "followers", Most: 2, Lasts: true}
	var all []*slot
	for range b.Most {
		s, err := x.acquire(t.Context(), &b, 1000)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	_, err := x.acquire(t.Context(), &b, 1000)
	var e *api.Error
	if !errors.As(err, &e) || e.Kind != api.KindUnavailable || !strings.Contains(e.Message, "2 followers") || e.Hint == "" {
		t.Errorf("one more returned %v", err)
	}
	if _, err := x.acquire(t.Context(), &b, 1001); err != nil {
		t.Errorf("another user is refused: %v", err)
	}
	all[0].release()
	if _, err := x.acquire(t.Context(), &b, 1000); err != nil {
		t.Errorf("after the end of one: %v", err)
	}
}

// Users take turns: however many requests of others wait, a user's waits for one of each of them at most.
func TestUsersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x limiter
		b := Bound{Kind: "reads", Most: 8, Together: 2}
		const users, each = 10, 50
		order := make(chan *slot, users*each+1)
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		request := func(uid int) {
			go func() {
				if s, err := x.acquire(ctx, &b, uid); err == nil {
					order <- s
				}
			}()
			synctest.Wait()
		}
		for range each {
			for uid := range users {
				request(1000 + uid)
			}
		}
		request(2000)
		before := 0
		for {
			if len(order) > b.Together {
				t.Fatalf("%d run at a time", len(order))
			}
			s := <-order
			if s.uid == 2000 {
				break
			}
			before++
			s.answer() // Its caller reads slowly: the others do not wait for that.
			synctest.Wait()
			defer s.release()
		}
		if before > users+b.Together {
			t.Errorf("%d requests of others came first", before)
		}
	})
}
