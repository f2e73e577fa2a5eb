package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// fakeRequester is a user whose rights the test changes.
type fakeRequester struct {
	now     Standing
	answer  Standing // of the directory when it is queried
	confirm int
}

func (h *fakeRequester) Standing(string) Standing { return h.now }

func (h *fakeRequester) Confirm(context.Context, string) Standing {
	h.confirm++
	h.now = h.answer
	return h.now
}

// requestOf submits a request of a requester that waits.
func requestOf(t *testing.T, tab *Table, h Requester) *Ticket {
	t.Helper()
	var forever time.Duration
	k, err := tab.Submit(Request{Tenant: "vision", Grant: "train", Member: []string{"vision"}, UID: 1001, By: h, Wait: &forever})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func deniedBy(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Kind == api.KindDenied && strings.Contains(e.Message, "alice is not a member any more")
}

// A request whose user is removed ends at once, with why, and the next one gets the place.
func TestRemovedUsersDoNotWait(t *testing.T) {
	for name, check := range map[string]func(*Table){
		"when the identities change": (*Table).Recheck,
		"when the spec changes": func(tab *Table) {
			v := lab()
			v.Generation++
			tab.Update(v)
		},
		"when a place is free": func(tab *Table) {
			for _, l := range tab.Live() {
				_ = tab.Ended(context.Background(), l.ID, "") // The test sees what follows.
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var ended []string
			tab := New(Config{Isolation: &fakeIsolation{}, Changed: func(l Lease) {
				if l.State == Ended {
					ended = append(ended, l.ID)
				}
			}})
			tab.Update(lab())
			mustSubmit(t, tab, "vision", "train")
			alice, other := &fakeRequester{}, &fakeRequester{}
			removed, remaining := requestOf(t, tab, alice), requestOf(t, tab, other)
			next(t, removed)
			alice.now = Standing{Denied: "alice is not a member any more"}
			check(tab)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := removed.Next(ctx); !deniedBy(err) {
				t.Errorf("the request of the removed user: %v", err)
			}
			if !strings.Contains(strings.Join(ended, " "), removed.ID()) {
				t.Errorf("its end is not reported: %v", ended)
			}
			if live := tab.Live(); len(live) > 0 && live[0].ID != remaining.ID() {
				_ = tab.Ended(t.Context(), live[0].ID, "")
			}
			if isPlaced(tab, removed) || !isPlaced(tab, remaining) {
				t.Errorf("the leases are %+v", tab.List())
			}
		})
	}
}

// A user of whom nothing is known waits and claims nothing, and says for what.
func TestUnsureUsersWait(t *testing.T) {
	tab, _ := table(t, lab())
	hangs := &fakeRequester{now: Standing{Unsure: "the directory has not answered"}}
	k := requestOf(t, tab, hangs)
	if u := next(t, k); u.Placed || u.Lease.Waiting != "the directory has not answered" {
		t.Fatalf("%+v", u)
	}
	if _, err := tab.Submit(Request{Tenant: "vision", Grant: "train", Member: []string{"vision"}, UID: 1001, By: hangs}); err == nil ||
		!strings.Contains(err.Error(), "the directory has not answered") {
		t.Errorf("a request that does not wait: %v", err)
	}
	other := requestOf(t, tab, &fakeRequester{})
	if !isPlaced(tab, other) {
		t.Fatal("another user waits for the answer too")
	}
	if err := tab.Ended(t.Context(), other.ID(), ""); err != nil {
		t.Fatal(err)
	}
	hangs.now = Standing{}
	tab.Recheck()
	if !isPlaced(tab, k) {
		t.Error("it is not placed when the directory answers")
	}
}

// The directory is asked once more before a lease starts.
func TestRightsAreConfirmedAtTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		says Standing
		kind api.Kind
	}{
		"a member":               {},
		"removed":                {Standing{Denied: "alice is not a member any more"}, api.KindDenied},
		"a directory that hangs": {Standing{Unsure: "the directory has not answered"}, api.KindUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			tab, isolation := table(t, lab())
			h := &fakeRequester{answer: c.says}
			k := requestOf(t, tab, h)
			if !isPlaced(tab, k) {
				t.Fatal("it is not placed")
			}
			_, _, err := tab.Start(t.Context(), k.ID(), Process{PID: 42, Start: 7})
			var e *api.Error
			if h.confirm != 1 || (c.kind == "") != (err == nil) || err != nil && (!errors.As(err, &e) || e.Kind != c.kind) {
				t.Errorf("queried %d times: %v", h.confirm, err)
			}
			if n := len(isolation.isolated); (n == 1) != (err == nil) {
				t.Errorf("%d leases are isolated", n)
			}
			if _, live := tab.Get(k.ID()); live != (err == nil) {
				t.Errorf("the lease lives: %v", live)
			}
		})
	}
}

func TestOwns(t *testing.T) {
	tab, _ := table(t, lab())
	first := requestOf(t, tab, &fakeRequester{})
	waits := requestOf(t, tab, &fakeRequester{})
	if !tab.Owns(1001) || tab.Owns(1002) {
		t.Error("a user with a lease has none, or another user has one")
	}
	if err := tab.Ended(t.Context(), first.ID(), ""); err != nil {
		t.Fatal(err)
	}
	waits.Cancel()
	if tab.Owns(1001) {
		t.Error("a user without a lease has one")
	}
}
