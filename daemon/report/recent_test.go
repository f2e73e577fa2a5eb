package report

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
)

func all(*api.Event) bool { return true }

func TestRecentEvents(t *testing.T) {
	now := time.Unix(1000, 0)
	b := NewBroker(func() time.Time { return now })
	for _, kind := range []string{"a", "b", "c"} {
		b.Publish(api.Event{Kind: kind, Tenant: "red"})
		now = now.Add(time.Minute)
	}
	b.Publish(api.Event{Kind: "d", Tenant: "blue"})
	for _, c := range []struct {
		about        string
		sees         func(*api.Event) bool
		since, until time.Time
		want         string
	}{
		{"all", all, time.Time{}, time.Time{}, "abcd"},
		{"since is the first moment", all, time.Unix(1060, 0), time.Time{}, "bcd"},
		{"until is after the last", all, time.Time{}, time.Unix(1120, 0), "ab"},
		{"both", all, time.Unix(1060, 0), time.Unix(1120, 0), "b"},
		{"of one tenant", func(e *api.Event) bool { return e.Tenant == "blue" }, time.Time{}, time.Time{}, "d"},
		{"later than all", all, time.Unix(2000, 0), time.Time{}, ""},
	} {
		got := ""
		for _, e := range b.Recent(c.sees, c.since, c.until) {
			got += e.Kind
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.about, got, c.want)
		}
	}
}

// A tenant whose events are many loses its own, and those of others and of the node are kept.
func TestRecentEventsOfOthersAreKept(t *testing.T) {
	b := NewBroker(time.Now)
	b.Publish(api.Event{Kind: "of the node"})
	b.Publish(api.Event{Kind: "of blue", Tenant: "blue"})
	for i := range 3 * mostRecent {
		b.Publish(api.Event{Kind: fmt.Sprint(i), Tenant: "red"})
	}
	got := b.Recent(all, time.Time{}, time.Time{})
	if len(got) != mostRecent || got[0].Kind != "of the node" || got[1].Kind != "of blue" {
		t.Fatalf("%d events are kept, the first are %+v", len(got), got[:min(3, len(got))])
	}
	if last := got[len(got)-1].Kind; last != fmt.Sprint(3*mostRecent-1) || got[2].Kind != fmt.Sprint(2*mostRecent+2) {
		t.Errorf("of the others %s to %s are kept", got[2].Kind, last)
	}
	for range mostRecent {
		b.Publish(api.Event{Kind: "late", Tenant: "blue"})
	}
	n := map[string]int{}
	for _, e := range b.Recent(all, time.Time{}, time.Time{}) {
		n[e.Tenant]++
	}
	if n[""] != 1 || n["red"] < mostRecent/2-1 || n["blue"] < mostRecent/2-1 {
		t.Errorf("two tenants of many events have %v", n)
	}
}

// A thousand short leases of one member push out neither an XID of the same tenant, nor what another member did.
func TestRecentEventsOfAUserAreBounded(t *testing.T) {
	b := NewBroker(time.Now)
	b.Publish(api.Event{Kind: "gpu.xid", Tenant: "red", User: "alice"})
	b.Publish(api.Event{Kind: "lease.started", Tenant: "red", User: "bob"})
	b.Publish(api.Event{Kind: "memory.stopped", Tenant: "red"})
	for range 1300 {
		b.Publish(api.Event{Kind: "lease.started", Tenant: "red", User: "alice"})
		b.Publish(api.Event{Kind: "lease.ended", Tenant: "red", User: "alice"})
	}
	got := b.Recent(all, time.Time{}, time.Time{})
	if len(got) != mostRecent || got[0].Kind != "gpu.xid" || got[1].User != "bob" || got[2].Kind != "memory.stopped" {
		t.Errorf("%d events are kept, the first are %+v %+v %+v", len(got), *got[0], *got[1], *got[2])
	}
}
