package lease

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// lab is a node with every kind of GPU and three tenants.
func lab() View {
	return View{
		Generation: 1,
		GPUs: []GPUView{
			partitioned(0),
			device(1, "mps"),
			device(2, "timeslice"),
			device(3, "timeslice"),
			device(4, "exclusive"),
			device(5, "exclusive"),
		},
		Grants: []Grant{
			mig("vision", "train", "3g.20gb"), timeslice("vision", "dev", 40, 20*gib),
			timeslice("speech", "dev", 30, 30*gib), mps("speech", "serve", 30, 16*gib),
			exclusive("physics", "big", 2), with(exclusive("physics", "one", 1), func(g *Grant) { n := 2; g.Spec.MaxLeases = &n }),
			exclusive("ml", "one", 1),
		},
	}
}

// Who may know which tenants there are learns which one was meant, and of which to choose.
func TestHintsAboutTenants(t *testing.T) {
	tab, _ := table(t, lab())
	for name, c := range map[string]struct {
		r    Request
		hint string
	}{
		"an administrator without a tenant": {Request{Admin: true}, "name one with -t: vision, speech"},
		"an administrator who mistypes one": {Request{Admin: true, Tenant: "visoin"}, "did you mean vision? 'gpushare tenant list' shows them"},
		"one like no other":                 {Request{Admin: true, Tenant: "xyzzy"}, "see 'gpushare tenant list'"},
		"a member learns of no other":       {Request{Member: []string{"vision"}, Tenant: "speeh"}, "you are a member of vision"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tab.Submit(c.r)
			var e *api.Error
			if !errors.As(err, &e) || !strings.HasPrefix(e.Hint, c.hint) {
				t.Errorf("the hint is %q, want %q: %v", e.Hint, c.hint, err)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	tab, _ := table(t, lab())
	tests := []struct {
		name string
		r    Request
		kind api.Kind
		text string
	}{
		{"no tenant", Request{}, api.KindDenied, "you are a member of no tenant"},
		{"an admin without a tenant", Request{Admin: true}, api.KindInvalid, "cannot choose a tenant"},
		{"several tenants", Request{Member: []string{"vision", "speech"}}, api.KindInvalid, "vision, speech"},
		{"several tenants have the grant", Request{Member: []string{"vision", "speech"}, Grant: "dev"}, api.KindInvalid, "vision, speech"},
		{"not a member", Request{Member: []string{"vision"}, Tenant: "speech"}, api.KindDenied, "no member of it"},
		{
			"a caller that is no member does not learn which tenants exist",
			Request{Member: []string{"vision"}, Tenant: "unknown"},
			api.KindDenied,
			"no member of it",
		},
		{"an admin does", Request{Admin: true, Tenant: "unknown"}, api.KindNotFound, `tenant "unknown"`},
		{"unknown grant", Request{Member: []string{"vision"}, Grant: "x"}, api.KindNotFound, `grant "x" of tenant vision`},
		{"a member without grants", Request{Member: []string{"empty"}}, api.KindNotFound, "it has none"},
		{"no grant of that kind", Request{Member: []string{"vision"}, Kind: "mps"}, api.KindNotFound, `for "mps"`},
		{"no grant of that profile", Request{Member: []string{"vision"}, Kind: "mig:1g.5gb"}, api.KindNotFound, `for "mig:1g.5gb"`},
		{"grant and kind differ", Request{Member: []string{"vision"}, Grant: "dev", Kind: "mig"}, api.KindInvalid, "another kind"},
		{"no such kind", Request{Member: []string{"vision"}, Kind: "all"}, api.KindInvalid, `kind "all"`},
		{"only MIG has profiles", Request{Member: []string{"vision"}, Kind: "mps:3"}, api.KindInvalid, `kind "mps:3"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tab.Submit(tt.r)
			var e *api.Error
			if !errors.As(err, &e) || e.Kind != tt.kind || !strings.Contains(e.Message, tt.text) {
				t.Errorf("got %v", err)
			}
		})
	}
	if n := len(tab.List()); n != 0 {
		t.Errorf("%d leases after refusals", n)
	}
}

// Another policy for GPU memory above the limit holds for live leases too: their users get a notice before anything follows from it. One
// that is written by a version with another default is the same.
func TestOveruseOfALiveLease(t *testing.T) {
	policy := func(of string) *api.OveruseSpec {
		grace := api.Duration(10 * time.Second)
		return &api.OveruseSpec{GPUMemory: of, Grace: &grace}
	}
	for _, c := range []struct {
		was, now string
		notice   string
		tightens bool
	}{
		{"notify", "kill", "overuse.gpu_memory of tenant vision is kill now, it was notify: above the 20 GiB of grant dev it is stopped after 10s", true},
		{"observe", "freeze", "overuse.gpu_memory of tenant vision is freeze now, it was observe: above the 20 GiB of grant dev it is frozen after 10s", true},
		{"freeze", "kill", "overuse.gpu_memory of tenant vision is kill now, it was freeze: above the 20 GiB of grant dev it is stopped after 10s", false},
		{"kill", "notify", "overuse.gpu_memory of tenant vision is notify now, it was kill: above the 20 GiB of grant dev it is only reported", false},
		{"kill", "kill", "", false},
	} {
		v := View{GPUs: []GPUView{device(0, "timeslice")}, Grants: []Grant{timeslice("vision", "dev", 10, 20*gib)}}
		v.Grants[0].Overuse = policy(c.was)
		before, _ := table(t, v)
		ticket, _ := mustSubmit(t, before, "vision", "dev")
		if _, _, err := before.Start(t.Context(), ticket.ID(), Process{42, 7}); err != nil {
			t.Fatal(err)
		}
		saved, err := before.State()
		if err != nil {
			t.Fatal(err)
		}
		tab := New(Config{Isolation: &fakeIsolation{}}) // As after an upgrade.
		if err := tab.Restore(saved); err != nil {
			t.Fatal(err)
		}
		v.Grants[0].Overuse = policy(c.now)
		tab.Update(v)
		l, _ := tab.Get(ticket.ID())
		if got := strings.Join(l.Notices, "; "); got != c.notice || l.Terms.Tightened != c.tightens || l.Terms.Overuse.GPUMemory != c.now {
			t.Errorf("from %s to %s: %q, tightened %v", c.was, c.now, got, l.Terms.Tightened)
		}
	}
}

func TestBeforeFirstUpdate(t *testing.T) {
	tab := New(Config{Isolation: &fakeIsolation{}})
	var e *api.Error
	if _, err := submit(tab, "vision", "dev"); !errors.As(err, &e) || e.Kind != api.KindUnavailable {
		t.Errorf("got %v", err)
	}
	v := lab()
	v.GPUs, v.DriverUnavailable = nil, "the driver is not loaded"
	tab.Update(v)
	if _, err := submit(tab, "vision", "dev"); !errors.As(err, &e) || e.Kind != api.KindUnavailable ||
		!strings.Contains(e.Message, "driver is not loaded") {
		t.Errorf("without the driver: got %v", err)
	}
	k := queue(t, tab, "vision", "dev")
	tab.Update(lab())
	if !isPlaced(tab, k) {
		t.Error("a request that waited while the driver was unavailable has no place")
	}
}

func TestGrantSelection(t *testing.T) {
	v := lab()
	tests := []struct {
		name string
		busy [][2]string
		r    Request
		want string // a part of the line
	}{
		{"requested", nil, Request{Member: []string{"vision"}, Grant: "dev"}, "grant dev of vision: requested"},
		{"the only one", nil, Request{Member: []string{"ml"}}, "grant one of ml: the only one that fits"},
		{
			"the only one of the kind",
			nil,
			Request{Member: []string{"vision"}, Kind: "timeslice"},
			"grant dev of vision: the only one that fits timeslice",
		},
		{
			"by profile",
			nil,
			Request{Member: []string{"vision"}, Kind: "mig:3g.20gb"},
			"grant train of vision: the only one that fits mig:3g.20gb",
		},
		{"the first in the order of the spec", nil, Request{Member: []string{"vision"}}, "grant train of vision: selected automatically"},
		{
			"the next if that is in use",
			[][2]string{{"vision", "train"}},
			Request{Member: []string{"vision"}},
			"grant dev of vision: selected automatically (train: its one lease is in use)",
		},
		{
			"one of several tenants has it",
			nil,
			Request{Member: []string{"vision", "speech"}, Grant: "serve"},
			"grant serve of speech: requested",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tab, _ := table(t, v)
			for _, b := range tt.busy {
				mustSubmit(t, tab, b[0], b[1])
			}
			k, err := tab.Submit(tt.r)
			if err != nil {
				t.Fatal(err)
			}
			if u := next(t, k); !u.Placed || u.Selected != tt.want {
				t.Errorf("got %+v", u)
			}
		})
	}
}

func TestQueueOrder(t *testing.T) {
	v := lab()
	high := with(exclusive("urgent", "one", 1), func(g *Grant) { g.Priority = "high" })
	v.Grants = append(v.Grants, high, exclusive("biology", "big", 2))
	tab, _ := table(t, v)
	_, big := mustSubmit(t, tab, "biology", "big")
	first := queue(t, tab, "physics", "one")
	second := queue(t, tab, "ml", "one")
	if u := next(t, second); u.Lease.Position != 2 || u.Lease.State != api.LeaseQueued ||
		!strings.Contains(u.Lease.Waiting, "1 exclusive GPU requested, 0 idle") {
		t.Errorf("got %+v", u.Lease)
	}
	third := queue(t, tab, "urgent", "one")
	if u := next(t, second); u.Lease.Position != 3 {
		t.Errorf("after a higher priority: got position %d", u.Lease.Position)
	}
	if err := tab.Ended(t.Context(), big.ID, "done"); err != nil {
		t.Fatal(err)
	}
	got := []bool{isPlaced(tab, first), isPlaced(tab, second), isPlaced(tab, third)}
	if diff := cmp.Diff([]bool{true, false, true}, got); diff != "" {
		t.Error(diff)
	}
	if u := next(t, second); u.Lease.Position != 1 {
		t.Errorf("got position %d", u.Lease.Position)
	}
}

func TestNoStarvation(t *testing.T) {
	t.Run("exclusive GPUs", func(t *testing.T) {
		v := lab()
		v.Grants = append(v.Grants, exclusive("biology", "one", 1))
		tab, _ := table(t, v)
		_, one := mustSubmit(t, tab, "biology", "one")
		big := queue(t, tab, "physics", "big") // needs both GPUs, one is idle
		if _, err := submit(tab, "ml", "one"); err == nil {
			t.Error("a later small request took the GPU that an earlier large one waits for")
		}
		if _, err := submit(tab, "vision", "dev"); err != nil {
			t.Errorf("a request for another GPU was delayed: %v", err)
		}
		if err := tab.Ended(t.Context(), one.ID, "done"); err != nil {
			t.Fatal(err)
		}
		if !isPlaced(tab, big) {
			t.Error("the large request has no place although both GPUs are idle")
		}
	})
	t.Run("a claim that cannot be satisfied", func(t *testing.T) {
		v := lab()
		tab, _ := table(t, v)
		v = lab()
		v.GPUs[5].Closed = "cordoned"
		tab.Update(v)
		queue(t, tab, "physics", "big")
		if _, err := submit(tab, "ml", "one"); err != nil {
			t.Errorf("an idle GPU is claimed by a request that only an administrator can satisfy: %v", err)
		}
	})
	t.Run("memory", func(t *testing.T) {
		v := View{GPUs: []GPUView{device(0, "timeslice")}, Grants: []Grant{
			timeslice("a", "small", 10, 20*gib),
			timeslice("b", "large", 10, 30*gib),
			timeslice("c", "small", 10, 10*gib),
			timeslice("a", "other", 10, 5*gib),
		}}
		tab, _ := table(t, v)
		_, a := mustSubmit(t, tab, "a", "small")
		large := queue(t, tab, "b", "large")
		if _, err := submit(tab, "c", "small"); err == nil || !strings.Contains(err.Error(), "claimed by an earlier request") {
			t.Errorf("got %v", err)
		}
		if _, err := submit(tab, "a", "small"); err != nil {
			t.Errorf("a second lease of a grant costs no memory and was delayed: %v", err)
		}
		for _, l := range tab.Live() {
			if err := tab.Ended(t.Context(), l.ID, "done"); err != nil {
				t.Fatal(err)
			}
		}
		if !isPlaced(tab, large) {
			t.Errorf("the large request has no place after %s ended", a.ID)
		}
	})
	t.Run("a cancelled request claims nothing", func(t *testing.T) {
		v := lab()
		v.Grants = append(v.Grants, exclusive("biology", "one", 1))
		tab, _ := table(t, v)
		mustSubmit(t, tab, "biology", "one")
		big := queue(t, tab, "physics", "big")
		small := queue(t, tab, "ml", "one")
		if isPlaced(tab, small) {
			t.Fatal("placed too early")
		}
		big.Cancel()
		if !isPlaced(tab, small) {
			t.Error("not placed after the earlier request was cancelled")
		}
	})
}

func TestReserved(t *testing.T) {
	reserved := func(g Grant) Grant { g.Spec.Reserved = true; return g }
	t.Run("a reserved place", func(t *testing.T) {
		v := lab()
		v.Grants[6] = reserved(v.Grants[6])
		tab, _ := table(t, v)
		if _, err := submit(tab, "physics", "big"); err == nil {
			t.Error("both GPUs were placed although one is reserved")
		}
		mustSubmit(t, tab, "physics", "one")
		mustSubmit(t, tab, "ml", "one")
	})
	t.Run("memory", func(t *testing.T) {
		v := View{
			GPUs:   []GPUView{device(0, "timeslice"), device(1, "timeslice")},
			Grants: []Grant{timeslice("a", "x", 10, 20*gib), reserved(timeslice("b", "r", 10, 30*gib)), timeslice("c", "y", 10, 30*gib)},
		}
		tab, _ := table(t, v)
		_, x := mustSubmit(t, tab, "a", "x")
		if x.Place.GPUs[0] != "GPU-1" {
			t.Errorf("on %s, where memory is reserved", x.Place.GPUs[0])
		}
		var e *api.Error
		if _, err := submit(tab, "c", "y"); !errors.As(err, &e) || e.Kind != api.KindUnavailable {
			t.Errorf("the reserved memory: %v", err)
		}
		_, r := mustSubmit(t, tab, "b", "r")
		if r.Place.GPUs[0] != "GPU-0" {
			t.Errorf("on %s", r.Place.GPUs[0])
		}
		got := tab.Granted()
		want := []api.GrantedMemory{{Tenant: "b", Grant: "r", Bytes: 30 * gib}}
		if diff := cmp.Diff(want, got["GPU-0"]); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("a request that does not fit next to a reserved grant is infeasible", func(t *testing.T) {
		v := View{Generation: 1, GPUs: []GPUView{device(0, "timeslice"), device(1, "exclusive")}, Grants: []Grant{
			reserved(timeslice("a", "r", 10, 20*gib)),
			timeslice("b", "x", 10, 20*gib),
			reserved(exclusive("a", "e", 1)),
			exclusive("b", "e", 1),
		}}
		tab, _ := table(t, v)
		for _, grant := range []string{"x", "e"} {
			var e *api.Error
			if _, err := submit(tab, "b", grant); !errors.As(err, &e) || e.Kind != api.KindInfeasible {
				t.Errorf("%s: got %v", grant, err)
			}
		}
	})
	t.Run("a place that is not possible any more is replaced", func(t *testing.T) {
		v := View{
			Generation: 1,
			GPUs:       []GPUView{device(0, "timeslice"), device(1, "timeslice"), partitioned(2), partitioned(3)},
			Grants: []Grant{
				reserved(timeslice("a", "r", 10, 20*gib)),
				timeslice("b", "x", 10, 15*gib),
				reserved(mig("a", "m", "3g.20gb")),
				mig("b", "m", "3g.20gb"),
			},
		}
		only := &api.Selector{All: true}
		v.Grants[1].Spec.GPUs, v.Grants[1].GPUs = only, []gpu.UUID{"GPU-0"}
		v.Grants[3].Spec.GPUs, v.Grants[3].GPUs = only, []gpu.UUID{"GPU-3"}
		tab, _ := table(t, v)
		mustSubmit(t, tab, "b", "x") // on GPU-0, next to the reservation
		mustSubmit(t, tab, "b", "m")
		where := func() (gpu.UUID, gpu.UUID) {
			return tab.reserved[Key{"a", "r"}][0].GPUs[0], tab.reserved[Key{"a", "m"}][0].GPUs[0]
		}
		if r, m := where(); r != "GPU-0" || m != "GPU-2" {
			t.Fatalf("kept free on %s and %s", r, m)
		}
		v.Generation, v.Grants = 2, slices.Clone(v.Grants)
		v.Grants[0] = reserved(timeslice("a", "r", 10, 30*gib))
		v.GPUs = slices.Clone(v.GPUs)
		v.GPUs[2].Instances = v.GPUs[2].Instances[:3]
		v.GPUs = append(v.GPUs, partitioned(4))
		tab.Update(v)
		if r, m := where(); r != "GPU-1" || m != "GPU-4" {
			t.Errorf("kept free on %s and %s", r, m)
		}
	})
	t.Run("a reserved place is freed when its grant is placed elsewhere", func(t *testing.T) {
		v := View{
			Generation: 1, GPUs: []GPUView{device(0, "timeslice"), device(1, "timeslice")},
			Grants: []Grant{reserved(timeslice("a", "r", 10, 20*gib)), timeslice("b", "x", 10, 5*gib), timeslice("c", "w", 10, 30*gib)},
		}
		for _, i := range []int{1, 2} {
			v.Grants[i].Spec.GPUs, v.Grants[i].GPUs = &api.Selector{All: true}, []gpu.UUID{"GPU-0"}
		}
		tab, _ := table(t, v)
		mustSubmit(t, tab, "b", "x")
		w := queue(t, tab, "c", "w")
		if isPlaced(tab, w) {
			t.Fatal("placed where memory is reserved")
		}
		if _, r := mustSubmit(t, tab, "a", "r"); r.Place.GPUs[0] != "GPU-1" {
			t.Fatalf("placed on %s", r.Place.GPUs[0])
		}
		if !isPlaced(tab, w) {
			t.Error("it still waits")
		}
	})
	t.Run("unmet", func(t *testing.T) {
		v := lab()
		tab, _ := table(t, v)
		mustSubmit(t, tab, "physics", "big")
		v.Generation = 2
		v.Grants[6] = reserved(v.Grants[6])
		tab.Update(v)
		if u := tab.Unmet(); len(u) != 1 || u[0].Grant != (Key{"ml", "one"}) {
			t.Errorf("got %+v", u)
		}
		for _, l := range tab.Live() {
			if err := tab.Ended(t.Context(), l.ID, ""); err != nil {
				t.Fatal(err)
			}
		}
		if u := tab.Unmet(); len(u) != 0 {
			t.Errorf("got %+v after capacity became free", u)
		}
	})
}

func TestStartAndEnd(t *testing.T) {
	p := Process{PID: 42, Start: 7}
	var states []State
	w := &fakeIsolation{}
	saves := 0
	var saved []byte
	tab := New(Config{
		Isolation: w, Now: func() time.Time { return epoch },
		Changed: func(l Lease) { states = append(states, l.State) },
		Save:    func(_ context.Context, b []byte) error { saves++; saved = b; return nil },
	})
	v := lab()
	hour := api.Duration(time.Hour)
	v.Grants[1].Spec.MaxTime = &hour
	tab.Update(v)
	w.onIsolate = func(l Lease) {
		if !strings.Contains(string(saved), l.ID) {
			t.Error("the lease is not recorded before it is isolated")
		}
	}
	k, _ := mustSubmit(t, tab, "vision", "dev")
	l, result, err := tab.Start(t.Context(), k.ID(), p)
	if err != nil {
		t.Fatal(err)
	}
	if result.Environment["GPUSHARE_LEASE"] != k.ID() || l.State != Running || l.Process != p || l.Isolation.Cgroup != "/"+k.ID() {
		t.Errorf("got %+v, %+v", l, result)
	}
	if l.Expires == nil || !l.Expires.Equal(epoch.Add(time.Hour)) {
		t.Errorf("ends at %v", l.Expires)
	}
	if !strings.Contains(string(saved), `"isolated"`) {
		t.Errorf("the running lease is not recorded before the answer: %s", saved)
	}
	var e *api.Error
	if _, _, err := tab.Start(t.Context(), k.ID(), p); !errors.As(err, &e) || e.Kind != api.KindConflict {
		t.Errorf("a second start: %v", err)
	}
	k.Cancel()
	if !isPlaced(tab, k) {
		t.Error("a ticket's Cancel ended a running lease")
	}
	if err := tab.Ending(l.ID, "asked to"); err != nil {
		t.Fatal(err)
	}
	w.removeErr = errors.New("busy")
	if err := tab.Ended(t.Context(), l.ID, "exited"); err == nil || !isPlaced(tab, k) {
		t.Errorf("the place was freed before the isolation was removed (%v)", err)
	}
	w.removeErr = nil
	if err := tab.Ended(t.Context(), l.ID, "exited"); err != nil || isPlaced(tab, k) {
		t.Errorf("still there, %v", err)
	}
	if err := tab.Ended(t.Context(), l.ID, "exited"); err != nil {
		t.Errorf("again: %v", err)
	}
	if diff := cmp.Diff([]State{Placed, Placed, Isolated, Running, Ending, Ended}, states); diff != "" {
		t.Error(diff)
	}
	if saves != 3 {
		t.Errorf("%d saves", saves)
	}
}

func TestStartFails(t *testing.T) {
	p := Process{PID: 42, Start: 7}
	t.Run("isolation", func(t *testing.T) {
		tab, w := table(t, lab())
		w.isolateErr = errors.New("no cgroup")
		k, _ := mustSubmit(t, tab, "vision", "train")
		if _, _, err := tab.Start(t.Context(), k.ID(), p); err == nil || !strings.Contains(err.Error(), "no cgroup") {
			t.Errorf("got %v", err)
		}
		if w.removed != 1 {
			t.Errorf("a partial isolation was removed %d times", w.removed)
		}
		w.isolateErr = nil
		mustSubmit(t, tab, "vision", "train")
	})
	t.Run("the record", func(t *testing.T) {
		w := &fakeIsolation{}
		var full error
		tab := New(Config{Isolation: w, Save: func(context.Context, []byte) error { return full }})
		tab.Update(lab())
		w.onIsolate = func(Lease) { full = errors.New("no space left on device") }
		k, _ := mustSubmit(t, tab, "vision", "train")
		if _, _, err := tab.Start(t.Context(), k.ID(), p); err == nil ||
			!strings.Contains(err.Error(), "cannot record the leases: no space left") {
			t.Errorf("got %v", err)
		}
		if len(tab.Live()) != 0 || w.removed != 1 {
			t.Error("a lease that could not be recorded is in the table")
		}
	})
	t.Run("the process exits during the start", func(t *testing.T) {
		tab, w := table(t, lab())
		k, _ := mustSubmit(t, tab, "vision", "train")
		w.onIsolate = func(l Lease) {
			if err := tab.Ended(t.Context(), l.ID, "its processes exited"); err != nil {
				t.Error(err)
			}
		}
		var e *api.Error
		if _, _, err := tab.Start(t.Context(), k.ID(), p); !errors.As(err, &e) || !strings.Contains(e.Message, "processes exited") {
			t.Errorf("got %v", err)
		}
		if len(tab.Live()) != 0 || w.removed != 1 {
			t.Error("it is in the table")
		}
	})
	t.Run("unknown", func(t *testing.T) {
		tab, _ := table(t, lab())
		var e *api.Error
		if _, _, err := tab.Start(t.Context(), "x", p); !errors.As(err, &e) || e.Kind != api.KindNotFound {
			t.Errorf("got %v", err)
		}
	})
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := New(Config{Isolation: &fakeIsolation{}})
		tab.Update(lab())
		_, held := mustSubmit(t, tab, "vision", "train")
		wait := 10 * time.Minute
		submit := func() *Ticket {
			k, err := tab.Submit(Request{Admin: true, Tenant: "vision", Grant: "train", Wait: &wait})
			if err != nil {
				t.Fatal(err)
			}
			return k
		}

		start := time.Now()
		var waiting []string
		_, err := submit().Await(t.Context(), func(l api.Lease) { waiting = append(waiting, fmt.Sprint(l.Position, " ", l.Waiting)) })
		var e *api.Error
		if !errors.As(err, &e) || e.Kind != api.KindUnavailable ||
			e.Message != "cannot place a lease of vision: waited 10m; its one lease is in use" {
			t.Errorf("got %v", err)
		}
		if d := time.Since(start); d != wait {
			t.Errorf("waited %v", d)
		}
		if diff := cmp.Diff([]string{"1 its one lease is in use"}, waiting); diff != "" {
			t.Error(diff)
		}
		if n := len(tab.List()); n != 1 {
			t.Errorf("%d leases: the cancelled request is still in the queue", n)
		}

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { _, err := submit().Await(ctx, nil); done <- err }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}

		go func() {
			u, err := submit().Await(t.Context(), nil)
			if err == nil && !u.Placed {
				err = errors.New("not placed")
			}
			done <- err
		}()
		synctest.Wait()
		if err := tab.Ended(t.Context(), held.ID, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestCancelFreesThePlace(t *testing.T) {
	tab, _ := table(t, lab())
	k, _ := mustSubmit(t, tab, "vision", "train")
	waiting := queue(t, tab, "vision", "train")
	k.Cancel()
	if isPlaced(tab, k) || !isPlaced(tab, waiting) {
		t.Error("the next request was not placed")
	}
}

func TestSpecChanges(t *testing.T) {
	t.Run("a request for a grant that the spec does not have any more fails", func(t *testing.T) {
		tab, _ := table(t, lab())
		mustSubmit(t, tab, "physics", "big")
		k := queue(t, tab, "ml", "one")
		next(t, k)
		v := lab()
		v.Generation, v.Grants = 2, v.Grants[:6]
		tab.Update(v)
		var e *api.Error
		if _, err := k.Next(t.Context()); !errors.As(err, &e) || e.Kind != api.KindNotFound {
			t.Errorf("got %v", err)
		}
		if n := len(tab.Live()); n != 1 {
			t.Errorf("%d leases live", n)
		}
	})
	t.Run("a lost GPU does not end the wait, a spec without capacity does", func(t *testing.T) {
		tab, _ := table(t, lab())
		mustSubmit(t, tab, "physics", "big")
		k := queue(t, tab, "ml", "one")
		next(t, k)
		v := lab()
		v.GPUs = v.GPUs[:4]
		tab.Update(v)
		if l := tab.List(); len(l) != 2 || l[1].ID != k.ID() || l[1].State != api.LeaseQueued {
			t.Errorf("got %+v", l)
		}
		v.Generation = 2
		tab.Update(v)
		var e *api.Error
		if _, err := k.Next(t.Context()); !errors.As(err, &e) || e.Kind != api.KindInfeasible {
			t.Errorf("got %v", err)
		}
	})
	t.Run("what the tenant and the grant decide changes live", func(t *testing.T) {
		tab, _ := table(t, lab())
		mustSubmit(t, tab, "vision", "dev")
		v := lab()
		v.Generation = 2
		for i := range v.Grants {
			v.Grants[i].Priority, v.Grants[i].Preempt, v.Grants[i].Overuse = "low", api.PreemptStop, &api.OveruseSpec{GPUMemory: "freeze"}
		}
		v.Grants[1].Spec.Idle = &api.IdleSpec{After: api.Duration(time.Hour)}
		tab.Update(v)
		if got := tab.Live()[0].Terms; got.Priority != "low" || got.Preempt != api.PreemptStop || got.Overuse.GPUMemory != "freeze" ||
			got.Spec.Idle == nil {
			t.Errorf("got %+v", got)
		}
		// The lease keeps what its grant said last; the tenant still decides after the grant was removed.
		w := lab()
		w.Generation, w.Grants = 3, w.Grants[:1]
		w.Grants[0].Priority = "high"
		tab.Update(w)
		if got := tab.Live()[0].Terms; got.Priority != "high" || got.Preempt != "" || got.Spec.Idle == nil {
			t.Errorf("after the grant was removed: %+v", got)
		}
	})
	t.Run("two grants do not grow into the same memory", func(t *testing.T) {
		v := View{
			Generation: 1,
			GPUs:       []GPUView{device(0, "timeslice")},
			Grants:     []Grant{timeslice("a", "x", 30, 10*gib), timeslice("b", "y", 30, 10*gib)},
		}
		tab, _ := table(t, v)
		mustSubmit(t, tab, "a", "x")
		mustSubmit(t, tab, "b", "y")
		v.Generation, v.Grants = 2, []Grant{timeslice("a", "x", 30, 25*gib), timeslice("b", "y", 30, 25*gib)}
		tab.Update(v)
		l := tab.List()
		if diff := cmp.Diff([]uint64{25 * gib, 10 * gib}, []uint64{l[0].GPUMemory.Limit, l[1].GPUMemory.Limit}); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("share and memory change live as far as they fit", func(t *testing.T) {
		v := View{
			Generation: 1,
			GPUs:       []GPUView{device(0, "timeslice")},
			Grants:     []Grant{timeslice("a", "x", 30, 10*gib), timeslice("b", "y", 30, 20*gib)},
		}
		tab, _ := table(t, v)
		_, a := mustSubmit(t, tab, "a", "x")
		mustSubmit(t, tab, "b", "y")
		check := func(share float64, limit uint64, notices int) {
			t.Helper()
			l := tab.List()[0]
			if l.Share.Entitled != share || l.GPUMemory.Limit != limit || len(l.Notices) != notices {
				t.Errorf("got %v, %v, %v", *l.Share, *l.GPUMemory, l.Notices)
			}
		}
		revise := func(generation uint64, share float64, memory uint64) {
			v.Generation = generation
			v.Grants = []Grant{timeslice("a", "x", share, memory), v.Grants[1]}
			tab.Update(v)
		}
		check(30, 10*gib, 0)
		revise(2, 50, 19*gib)
		check(50, 19*gib, 2)
		revise(3, 60, 25*gib) // 25 + 20 > 39
		check(60, 19*gib, 4)
		revise(3, 60, 25*gib)
		check(60, 19*gib, 4)
		revise(4, 60, 5*gib)
		check(60, 5*gib, 5)
		if a.Terms.percent() != 30 {
			t.Error("a returned copy changed")
		}
	})
}

func TestRestore(t *testing.T) {
	v := lab()
	v.Grants[6].Spec.Reserved = true
	tab, _ := table(t, v)
	run, _ := mustSubmit(t, tab, "vision", "dev")
	if _, _, err := tab.Start(t.Context(), run.ID(), Process{42, 7}); err != nil {
		t.Fatal(err)
	}
	mustSubmit(t, tab, "vision", "train") // placed, never started
	mustSubmit(t, tab, "physics", "one")
	wait := queue(t, tab, "ml", "one")
	b, err := tab.State()
	if err != nil {
		t.Fatal(err)
	}
	_ = wait

	again := New(Config{Isolation: &fakeIsolation{}, Now: func() time.Time { return epoch.Add(-time.Hour) }})
	if err := again.Restore(b); err != nil {
		t.Fatal(err)
	}
	again.Update(v)
	if diff := cmp.Diff(tab.Live()[:1], again.Live()); diff != "" {
		t.Error(diff)
	}
	_, l := mustSubmit(t, again, "vision", "dev")
	for _, old := range tab.List() {
		if l.Generation <= old.Generation {
			t.Errorf("generation %d after %d: the clock went back and it was assigned again", l.Generation, old.Generation)
		}
	}
	for name, bad := range map[string]string{"no JSON": "{", "another format": `{"format": 1}`} {
		if err := New(Config{}).Restore([]byte(bad)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := again.Restore(b); err == nil {
		t.Error("a table in use was filled again")
	}
}

func TestConcurrentUse(t *testing.T) {
	const n = 200
	v := View{
		GPUs: []GPUView{device(0, "timeslice"), device(1, "timeslice"), device(2, "exclusive")},
		Grants: []Grant{
			timeslice("a", "x", 30, 10*gib),
			timeslice("b", "x", 30, 10*gib),
			with(exclusive("c", "x", 1), func(g *Grant) { n := 50; g.Spec.MaxLeases = &n }),
		},
	}
	w := &fakeIsolation{}
	var mu sync.Mutex
	saves := 0
	tab := New(Config{Isolation: w, Save: func(context.Context, []byte) error { mu.Lock(); saves++; mu.Unlock(); return nil }})
	tab.Update(v)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			wait := time.Minute
			k, err := tab.Submit(Request{Admin: true, Tenant: []string{"a", "b", "c"}[i%3], Wait: &wait})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := k.Await(t.Context(), nil); err != nil {
				t.Error(err)
				return
			}
			if _, _, err := tab.Start(t.Context(), k.ID(), Process{i + 1, 1}); err != nil {
				t.Error(err)
			}
			tab.List()
			if err := tab.Ended(t.Context(), k.ID(), "done"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if l := tab.List(); len(l) != 0 {
		t.Errorf("%d leases are left", len(l))
	}
	if w.removed != n || len(w.isolated) != 0 {
		t.Errorf("the isolation of %d of %d was removed", w.removed, n)
	}
}

func TestIDs(t *testing.T) {
	form := regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)
	long := strings.Repeat("abcde-", 6)[:31]
	tests := []struct{ tenant, grant, want string }{
		{"vision", "dev", "vision-dev-2222"},
		{"vision", "", "vision-2222"},
		{long, long, "abcde-ab-abcde-a-abcde-a-abcde-a-2222"},
		{"project-alpha-training", "dev", "project-training-dev-2222"},
		{"x", "Big_One", "x-big-one-2222"},
	}
	for _, tt := range tests {
		id := newID(tt.tenant, tt.grant, func(int) int { return 0 }, func(string) bool { return false })
		if !form.MatchString(id) || id != tt.want {
			t.Errorf("newID(%q, %q) = %q, want %q", tt.tenant, tt.grant, id, tt.want)
		}
	}
	// If every short suffix is in use the suffix is longer, also with a random source that repeats itself.
	calls := 0
	id := newID(long, long, func(int) int { calls++; return 0 }, func(id string) bool { return !strings.HasSuffix(id, "-222222") })
	if !form.MatchString(id) {
		t.Errorf("got %q", id)
	}
}
