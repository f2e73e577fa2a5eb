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
		running := make(chan func(), many)
		for range many {
			go func() {
				release, err := x.acquire(t.Context(), &b, 1000)
				if err != nil {
					t.Error(err)
				}
				running <- release
			}()
		}
		synctest.Wait()
		if len(running) != b.Most {
			t.Errorf("%d run at a time, want %d", len(running), b.Most)
		}
		for _, uid := range []int{0, 1001} {
			release, err := x.acquire(t.Context(), &b, uid)
			if err != nil {
				t.Fatalf("a request of user %d does not run: %v", uid, err)
			}
			release()
		}
		// A canceled request takes no place.
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if _, err := x.acquire(ctx, &b, 1000); err == nil {
			t.Error("a canceled request runs")
		}
		for range many {
			(<-running)()
			synctest.Wait()
			if len(running) > b.Most {
				t.Errorf("%d run at a time", len(running))
			}
		}
		if len(x.users) != 0 {
			t.Errorf("%d users without a request are kept", len(x.users))
		}
	})
}

// A request that lasts as long as its caller wants does not wait: it is refused, with the number.
func TestBoundOfLastingRequests(t *testing.T) {
	var x limiter
	b := Bound{Kind: "followers", Most: 2, Lasts: true}
	var all []func()
	for range b.Most {
		release, err := x.acquire(t.Context(), &b, 1000)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, release)
	}
	_, err := x.acquire(t.Context(), &b, 1000)
	var e *api.Error
	if !errors.As(err, &e) || e.Kind != api.KindUnavailable || !strings.Contains(e.Message, "2 followers") || e.Hint == "" {
		t.Errorf("one more returned %v", err)
	}
	if _, err := x.acquire(t.Context(), &b, 1001); err != nil {
		t.Errorf("another user is refused: %v", err)
	}
	all[0]()
	if _, err := x.acquire(t.Context(), &b, 1000); err != nil {
		t.Errorf("after the end of one: %v", err)
	}
}

// All users together have a limit of some requests that last, and users who have none get the last ones.
func TestBoundOfAllUsers(t *testing.T) {
	var x limiter
	b := Bound{Kind: "followers", Most: 8, Lasts: true, All: 64}
	const users = 50
	var all []func()
	for range b.Most {
		for uid := range users {
			if release, err := x.acquire(t.Context(), &b, 1000+uid); err == nil {
				all = append(all, release)
			}
		}
	}
	if len(all) < users || len(all) >= b.All {
		t.Fatalf("%d run, want one of each user at least, and less than %d", len(all), b.All)
	}
	for uid := 2000; len(all) < b.All; uid++ {
		release, err := x.acquire(t.Context(), &b, uid)
		if err != nil {
			t.Fatalf("user %d, who has none, is refused with %d: %v", uid, len(all), err)
		}
		all = append(all, release)
	}
	_, err := x.acquire(t.Context(), &b, 3000)
	var e *api.Error
	if !errors.As(err, &e) || e.Kind != api.KindUnavailable || !strings.Contains(e.Message, "64 followers") || e.Hint == "" {
		t.Errorf("one more returned %v", err)
	}
	if _, err := x.acquire(t.Context(), &b, 0); err != nil {
		t.Errorf("root is refused: %v", err)
	}
	for _, release := range all {
		release()
	}
	if len(x.users) != 0 || x.lasting[b.Kind] != 0 {
		t.Errorf("%d users and %d requests are kept", len(x.users), x.lasting[b.Kind])
	}
}
