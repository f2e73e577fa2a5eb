package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

func durationOf(d time.Duration) *api.Duration { v := api.Duration(d); return &v }

// A request that names GPUs is placed on one of them, waits for them, and is refused where no grant may use any.
func TestRequestsNameGPUs(t *testing.T) {
	view := View{
		GPUs: []GPUView{device(0, api.ModeTimeslice), device(1, api.ModeTimeslice), device(2, api.ModeExclusive), partitioned(3)},
		Grants: []Grant{
			timeslice("a", "x", 10, gib), exclusive("a", "whole", 1), mig("a", "part", "1g.5gb"),
			with(timeslice("b", "x", 10, gib), func(g *Grant) { g.Spec.GPUs, g.GPUs = &api.Selector{}, []gpu.UUID{"GPU-0"} }),
		},
	}
	for _, c := range []struct {
		name, tenant, grant string
		gpus                []string
		on                  string
		refused             string
	}{
		{"the least loaded without a name", "a", "x", nil, "GPU-0", ""},
		{"another", "a", "x", []string{"1"}, "GPU-1", ""},
		{"by its UUID", "a", "x", []string{"GPU-1"}, "GPU-1", ""},
		{"one of several", "a", "whole", []string{"7", "2"}, "GPU-2", ""},
		{"the grant follows from the GPU", "a", "", []string{"2"}, "GPU-2", ""},
		{"an instance", "a", "", []string{"3"}, "GPU-3", ""},
		{"one that does not exist", "a", "", []string{"7"}, "", "cannot place a lease of a on GPU 7: none of its grants may use that GPU"},
		{"one of another mode", "a", "x", []string{"2"}, "", "cannot place a lease of a on GPU 2: none of its grants may use that GPU"},
		{"one outside the selector", "b", "", []string{"1"}, "", "cannot place a lease of b on GPU 1: none of its grants may use that GPU"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab, _ := table(t, view)
			k, err := tab.Submit(Request{Tenant: c.tenant, Grant: c.grant, GPUs: c.gpus, Admin: true})
			if c.refused != "" {
				var refused *api.Error
				if !errors.As(err, &refused) || refused.Message != c.refused || refused.Kind != api.KindNotFound ||
					!strings.HasPrefix(refused.Hint, "they may use GPU ") {
					t.Fatalf("got %v (%+v), want %s", err, refused, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			l, _ := tab.Get(k.ID())
			if len(l.Place.GPUs) != 1 || string(l.Place.GPUs[0]) != c.on {
				t.Errorf("it is on %v, want %s", l.Place.GPUs, c.on)
			}
			if l.Terms.Only != nil {
				t.Error("the terms of the lease keep the GPUs of the request")
			}
			if want := c.tenant + "-" + l.Terms.Spec.Name + "-"; !strings.HasPrefix(l.ID, want) {
				t.Errorf("its id is %s, and does not begin with the grant: %s", l.ID, want)
			}
		})
	}
}

// A request for a GPU in use waits for that one, also while it is missing for a moment, and nothing else waits for it.
func TestRequestsWaitForTheirGPU(t *testing.T) {
	view := View{
		Generation: 1,
		GPUs:       []GPUView{device(0, api.ModeExclusive), device(1, api.ModeExclusive)},
		Grants:     []Grant{with(exclusive("a", "x", 1), func(g *Grant) { n := 4; g.Spec.MaxLeases = &n })},
	}
	tab, _ := table(t, view)
	first, l := mustSubmit(t, tab, "a", "x")
	var forever time.Duration
	k, err := tab.Submit(Request{Tenant: "a", GPUs: []string{"0"}, Admin: true, Wait: &forever})
	if err != nil || l.Place.GPUs[0] != "GPU-0" {
		t.Fatalf("%v, the first is on %v", err, l.Place.GPUs)
	}
	if u := next(t, k); u.Placed || u.Lease.Position != 1 {
		t.Fatalf("it got %+v although GPU 1 alone is idle", u)
	}
	if _, other := mustSubmit(t, tab, "a", "x"); other.Place.GPUs[0] != "GPU-1" {
		t.Errorf("the next request is on %v", other.Place.GPUs)
	}
	without := view
	without.GPUs = view.GPUs[1:]
	tab.Update(without)
	tab.Update(view)
	first.Cancel()
	for u := next(t, k); !u.Placed; u = next(t, k) {
	}
	if got, _ := tab.Get(k.ID()); got.Place.GPUs[0] != "GPU-0" {
		t.Errorf("it is on %v", got.Place.GPUs)
	}
}

// The time of a request ends its lease; it is at most the max_time of the grant.
func TestRequestsHaveATime(t *testing.T) {
	limited := with(timeslice("a", "short", 10, gib), func(g *Grant) { g.Spec.MaxTime = durationOf(time.Hour) })
	view := View{GPUs: []GPUView{device(0, api.ModeTimeslice)}, Grants: []Grant{limited, timeslice("a", "long", 10, gib)}}
	for _, c := range []struct {
		name, grant string
		time        *api.Duration
		ends        time.Duration // 0: never
		from        string
		refused     string
	}{
		{"none", "long", nil, 0, "max_time", ""},
		{"that of the grant", "short", nil, time.Hour, "max_time", ""},
		{"shorter than the grant's", "short", durationOf(time.Minute), time.Minute, "time", ""},
		{"as long as the grant's", "short", durationOf(time.Hour), time.Hour, "time", ""},
		{"without one of the grant", "long", durationOf(2 * time.Hour), 2 * time.Hour, "time", ""},
		{"the grant that allows it", "", durationOf(2 * time.Hour), 2 * time.Hour, "time", ""},
		{"longer than the grant's", "short", durationOf(2 * time.Hour), 0, "", "cannot place a lease of a for 2h: its grants have a max_time of at most 1h"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab, _ := table(t, view)
			k, err := tab.Submit(Request{Tenant: "a", Grant: c.grant, MaxTime: c.time, Admin: true})
			if c.refused != "" {
				var refused *api.Error
				if !errors.As(err, &refused) || refused.Message != c.refused || refused.Kind != api.KindInvalid {
					t.Fatalf("got %v, want %s", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			l, _, err := tab.Start(t.Context(), k.ID(), Process{PID: 1, Start: 1})
			if err != nil {
				t.Fatal(err)
			}
			if _, from := l.Time(); from != c.from || (l.Expires == nil) != (c.ends == 0) ||
				l.Expires != nil && !l.Expires.Equal(epoch.Add(c.ends)) {
				t.Errorf("it ends at %v by its %s, want after %s by its %s", l.Expires, from, c.ends, c.from)
			}
		})
	}
}
