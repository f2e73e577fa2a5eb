package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

// A user who waits for many places of one grant may wait for another, and is refused with the key of the spec.
func TestQueueLimitPerGrant(t *testing.T) {
	v := View{
		Generation: 1,
		Queue:      Queue{Waiting: 3},
		GPUs:       []GPUView{device(0, api.ModeExclusive), device(1, api.ModeTimeslice)},
		Grants: []Grant{
			exclusive("red", "whole", 1), with(timeslice("red", "part", 10, gib), func(g *Grant) { one := 1; g.Spec.MaxLeases = &one }),
		},
	}
	tab, _ := table(t, v)
	for _, grant := range []string{"whole", "part"} {
		var last *Ticket
		for range 1 + 3 {
			k, err := as(tab, 1001, "alice", "red", grant, true)
			if err != nil {
				t.Fatal(err)
			}
			last = k
		}
		_, err := as(tab, 1001, "alice", "red", grant, true)
		refused(
			t, err, api.KindUnavailable,
			"cannot wait for a lease of red: you wait for 3 of grant "+grant+" already, the most that a user may (queue.waiting)",
		)
		if _, err := as(tab, 1002, "bob", "red", grant, true); err != nil {
			t.Errorf("another user is refused: %v", err)
		}
		last.Cancel()
		if _, err := as(tab, 1001, "alice", "red", grant, true); err != nil {
			t.Errorf("after one left: %v", err)
		}
	}
}

// One user gets a limited number of places in the queue; other users and administrators may still wait.
func TestQueueLimitPerUser(t *testing.T) {
	tab, _ := table(t, View{Generation: 1, GPUs: []GPUView{device(0, api.ModeExclusive), device(1, api.ModeExclusive)}, Grants: []Grant{
		with(exclusive("red", "whole", 1), func(g *Grant) { n := 500; g.Spec.MaxLeases = &n }), exclusive("blue", "whole", 1),
	}})
	var forever time.Duration
	submit := func(tenant string, uid int, admin bool) (*Ticket, error) {
		return tab.Submit(Request{Tenant: tenant, Member: []string{tenant}, UID: uid, Admin: admin, Wait: &forever})
	}
	var all []*Ticket
	for i := range 2 + maxWaiting {
		k, err := submit("red", 1001, false)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		all = append(all, k)
	}
	_, err := submit("red", 1001, false)
	var e *api.Error
	if !errors.As(err, &e) || e.Kind != api.KindUnavailable || !strings.Contains(e.Message, "already") || e.Hint == "" {
		t.Errorf("one more request returned %v", err)
	}
	if n := len(tab.List()); n != 2+maxWaiting {
		t.Errorf("%d leases are in the table", n)
	}
	for _, other := range []struct {
		tenant string
		uid    int
		admin  bool
	}{{"red", 1002, false}, {"blue", 1003, false}, {"red", 1001, true}} {
		if _, err := submit(other.tenant, other.uid, other.admin); err != nil {
			t.Errorf("%+v is refused: %v", other, err)
		}
	}
	// A request that leaves frees one place.
	all[len(all)-1].Cancel()
	if _, err := submit("red", 1001, false); err != nil {
		t.Errorf("after one left: %v", err)
	}
	if _, err := submit("red", 1001, false); err == nil {
		t.Error("two places became free")
	}
}
