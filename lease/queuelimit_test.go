package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

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
