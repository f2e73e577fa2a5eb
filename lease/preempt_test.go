package lease

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

func low(g Grant) Grant {
	return with(g, func(g *Grant) { g.Priority, g.Preempt = "low", api.PreemptStop })
}

// run submits without waiting, and starts the lease.
func run(t *testing.T, tab *Table, tenant, grant string) Lease {
	t.Helper()
	k, _ := mustSubmit(t, tab, tenant, grant)
	l, _, err := tab.Start(t.Context(), k.ID(), Process{PID: int(k.sequence) + 1000, Start: 1})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// victims returns the ids of the leases that are to be stopped.
func victims(tab *Table) (ids []string) {
	for _, p := range tab.TakePreemptions() {
		for _, v := range p.Victims {
			ids = append(ids, v.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func end(t *testing.T, tab *Table, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := tab.Ended(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPreemption(t *testing.T) {
	two, three := 2, 3
	t.Run("the youngest of equals, and the place goes to the request", func(t *testing.T) {
		v := View{Generation: 1, GPUs: []GPUView{device(0, "exclusive"), device(1, "exclusive")}, Grants: []Grant{
			low(with(exclusive("batch", "one", 1), func(g *Grant) { g.Spec.MaxLeases = &three })), exclusive("vision", "one", 1),
		}}
		tab, _ := table(t, v)
		run(t, tab, "batch", "one")
		young := run(t, tab, "batch", "one")
		other := queue(t, tab, "batch", "one")
		k := queue(t, tab, "vision", "one")
		if got := next(t, k).Lease.Waiting; got != "waits for 1 lease of a lower priority to end: preempted" {
			t.Errorf("it waits because %q", got)
		}
		if got := victims(tab); !slices.Equal(got, []string{young.ID}) {
			t.Fatalf("stopped are %v, want %s", got, young.ID)
		}
		if got := victims(tab); got != nil {
			t.Errorf("and again %v", got)
		}
		tab.Update(v)
		if got := victims(tab); got != nil {
			t.Errorf("after an update %v", got)
		}
		end(t, tab, young.ID)
		if !isPlaced(tab, k) || isPlaced(tab, other) {
			t.Errorf("placed are %+v", tab.Live())
		}
	})
	t.Run("no further lease of the victims' grant starts in what is freed", func(t *testing.T) {
		v := View{
			Generation: 1,
			GPUs:       []GPUView{device(0, "timeslice")},
			Grants:     []Grant{low(timeslice("batch", "g", 30, 20*gib)), timeslice("vision", "g", 30, 30*gib)},
		}
		tab, _ := table(t, v)
		a, b := run(t, tab, "batch", "g"), run(t, tab, "batch", "g")
		k := queue(t, tab, "vision", "g")
		want := []string{a.ID, b.ID}
		slices.Sort(want)
		if got := victims(tab); !slices.Equal(got, want) { // Both hold the grant's memory.
			t.Fatalf("stopped are %v", got)
		}
		end(t, tab, a.ID)
		if _, err := submit(tab, "batch", "g"); err == nil || !strings.Contains(err.Error(), "claimed by an earlier request") {
			t.Errorf("a further lease of the grant: %v", err)
		}
		end(t, tab, b.ID)
		if !isPlaced(tab, k) {
			t.Error("it still waits")
		}
	})
	t.Run("fewest: one large instance, not two small grants", func(t *testing.T) {
		v := View{Generation: 1, GPUs: []GPUView{device(0, "timeslice"), device(1, "timeslice")}, Grants: []Grant{
			low(timeslice("small", "a", 30, 19*gib)),
			low(timeslice("small", "b", 30, 19*gib)),
			low(timeslice("large", "g", 90, 38*gib)),
			timeslice("vision", "g", 30, 30*gib),
		}}
		for i, on := range []gpu.UUID{"GPU-0", "GPU-0", "GPU-1"} {
			v.Grants[i].Spec.GPUs, v.Grants[i].GPUs = &api.Selector{All: true}, []gpu.UUID{on}
		}
		tab, _ := table(t, v)
		large := run(t, tab, "large", "g")
		run(t, tab, "small", "a")
		run(t, tab, "small", "b")
		queue(t, tab, "vision", "g")
		if got := victims(tab); !slices.Equal(got, []string{large.ID}) {
			t.Errorf("stopped are %v", got)
		}
	})
	t.Run("an instance that is created", func(t *testing.T) {
		f := newDynamicFixture(
			t, 1, low(with(mig("batch", "quarter", "1g.6gb"), func(g *Grant) { four := 4; g.Spec.MaxLeases = &four })),
			mig("vision", "half", "2g.12gb"),
		)
		for range 4 {
			k := queue(t, f.Table, "batch", "quarter")
			f.createPending()
			if _, _, err := f.Start(t.Context(), k.ID(), Process{PID: int(k.sequence) + 1000, Start: 1}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range f.view.GPUs[0].Instances { // Their processes use them.
			f.view.GPUs[0].Instances[i].Pinned, f.view.GPUs[0].Instances[i].InUse = true, true
		}
		f.Update(f.view)
		k := queue(t, f.Table, "vision", "half")
		got := victims(f.Table)
		if len(got) != 2 {
			t.Fatalf("stopped are %v", got)
		}
		end(t, f.Table, got...)
		if other := queue(t, f.Table, "batch", "quarter"); isPlaced(f.Table, other) {
			t.Error("a lease of a lower priority got what was freed")
		}
		for i := range f.view.GPUs[0].Instances {
			f.view.GPUs[0].Instances[i].Pinned, f.view.GPUs[0].Instances[i].InUse = false, false
		}
		f.Update(f.view)
		if more := victims(f.Table); more != nil {
			t.Errorf("further leases are stopped: %v", more)
		}
		f.createPending()
		if !isPlaced(f.Table, k) {
			t.Error("it still waits")
		}
	})
	t.Run("none", func(t *testing.T) {
		for name, change := range map[string]func(v *View, r *Request){
			"the tenant does not allow it":  func(v *View, _ *Request) { v.Grants[0].Preempt = "" },
			"the same priority":             func(v *View, _ *Request) { v.Grants[0].Priority = "" },
			"the request does not wait":     func(_ *View, r *Request) { r.Wait = nil },
			"the GPU is closed":             func(v *View, _ *Request) { v.GPUs[0].Closed = "cordoned" },
			"the place stays reserved":      func(v *View, _ *Request) { v.Grants[0].Spec.Reserved = true },
			"a limit of the user":           func(v *View, r *Request) { v.PerUser.Memory, r.UID = 45*gib, 1001 },
			"another lease stays there too": func(v *View, _ *Request) { v.Grants[1].Spec.Exclusive = 2 },
			"the node observes":             func(v *View, _ *Request) { v.Observing = true },
		} {
			t.Run(name, func(t *testing.T) {
				v := View{
					Generation: 1,
					GPUs:       []GPUView{device(0, "exclusive"), device(1, "exclusive")},
					Grants:     []Grant{low(exclusive("batch", "one", 1)), exclusive("vision", "one", 1), exclusive("c", "one", 1)},
				}
				v.GPUs[1].Capacity = 10 * gib
				tab, _ := table(t, v)
				run(t, tab, "batch", "one")
				run(t, tab, "c", "one")
				if name == "a limit of the user" { // 40 GiB fit alone, not next to the 10 GiB of another lease.
					end(t, tab, tab.Live()[1].ID)
					if _, err := as(tab, 1001, "alice", "c", "one", false); err != nil {
						t.Fatal(err)
					}
				}
				r := Request{Tenant: "vision", Admin: true, Wait: queueForever()}
				v.GPUs, v.Grants = slices.Clone(v.GPUs), slices.Clone(v.Grants)
				v.Generation = 2
				change(&v, &r)
				tab.Update(v)
				k, err := tab.Submit(r)
				if (err == nil) != (r.Wait != nil) {
					t.Fatal(err)
				}
				if got := victims(tab); got != nil {
					t.Errorf("stopped are %v", got)
				}
				if name == "the node observes" &&
					!strings.Contains(next(t, k).Lease.Waiting, "it would be placed after 1 lease of a lower priority") {
					t.Errorf("it waits because %q", k.waiting)
				}
			})
		}
	})
	t.Run("what is in place is not stopped", func(t *testing.T) {
		v := View{
			Generation: 1,
			GPUs:       []GPUView{device(0, "exclusive")},
			Grants:     []Grant{low(exclusive("batch", "one", 1)), exclusive("vision", "one", 1)},
		}
		for _, origin := range []string{OriginAttached, OriginLogin, OriginUnit, OriginContainer, OriginDetached} {
			tab, _ := table(t, v)
			k, err := tab.Submit(Request{Tenant: "batch", Admin: true, Origin: origin})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := tab.Start(t.Context(), k.ID(), Process{PID: 1, Start: 1}); err != nil {
				t.Fatal(err)
			}
			queue(t, tab, "vision", "one")
			if got := victims(tab); (len(got) == 1) != (origin == OriginDetached) {
				t.Errorf("%s: stopped are %v", origin, got)
			}
		}
	})
	t.Run("a request that was cancelled or placed stops nothing more", func(t *testing.T) {
		v := View{Generation: 1, GPUs: []GPUView{device(0, "exclusive"), device(1, "exclusive")}, Grants: []Grant{
			low(with(exclusive("batch", "one", 1), func(g *Grant) { g.Spec.MaxLeases = &two })), exclusive("vision", "one", 1),
		}}
		tab, _ := table(t, v)
		a, b := run(t, tab, "batch", "one"), run(t, tab, "batch", "one")
		k := queue(t, tab, "vision", "one")
		if got := victims(tab); !slices.Equal(got, []string{b.ID}) || !tab.Preempts(b.ID) || tab.Preempts(a.ID) {
			t.Fatalf("stopped are %v", got)
		}
		end(t, tab, a.ID)
		if !isPlaced(tab, k) || tab.Preempts(b.ID) {
			t.Error("the lease is still to be stopped")
		}
	})
	t.Run("a lease that starts after the request", func(t *testing.T) {
		v := View{
			Generation: 1,
			GPUs:       []GPUView{device(0, "exclusive")},
			Grants:     []Grant{low(exclusive("batch", "one", 1)), exclusive("vision", "one", 1)},
		}
		tab, _ := table(t, v)
		placed, _ := mustSubmit(t, tab, "batch", "one")
		queue(t, tab, "vision", "one")
		if got := victims(tab); got != nil {
			t.Errorf("a lease that has not started is stopped: %v", got)
		}
		if _, _, err := tab.Start(t.Context(), placed.ID(), Process{PID: 1, Start: 1}); err != nil {
			t.Fatal(err)
		}
		if got := victims(tab); !slices.Equal(got, []string{placed.ID()}) {
			t.Errorf("stopped are %v", got)
		}
	})
}

// What is freed for a request is not for another of its priority that comes later and used less, until it is clear that the place
// does not become free. One of a higher priority takes it.
func TestAFreedPlaceIsKept(t *testing.T) {
	for _, c := range []struct {
		name, priority string
		closed         bool // the place does not become free
		placed         []string
		first          string // in the queue, later
	}{
		{name: "the same priority", placed: []string{"vision"}, first: "other"},
		{name: "a higher priority", priority: "high", placed: []string{"other"}, first: "vision"},
		{name: "it does not become free", closed: true, first: "other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			two, now := 2, epoch
			v := View{Generation: 1, GPUs: []GPUView{device(0, "exclusive"), device(1, "exclusive")}, Grants: []Grant{
				low(with(exclusive("batch", "one", 1), func(g *Grant) { g.Spec.MaxLeases = &two })), exclusive("vision", "two", 2),
				with(exclusive("other", "one", 1), func(g *Grant) { g.Priority = c.priority }),
			}}
			tab := New(Config{Isolation: &fakeIsolation{}, Now: func() time.Time { return now }})
			tab.RestoreLately(Lately{At: epoch, Users: []UsedLately{{"vision", 0, 50000}}})
			tab.Update(v)
			a, b := run(t, tab, "batch", "one"), run(t, tab, "batch", "one")
			k := queue(t, tab, "vision", "two")
			if got := victims(tab); len(got) != 2 {
				t.Fatalf("stopped are %v", got)
			}
			later := queue(t, tab, "other", "one")
			if got := victims(tab); got != nil {
				t.Errorf("%v are stopped for a second request", got)
			}
			now = now.Add(time.Second)
			end(t, tab, a.ID)
			if isPlaced(tab, later) != (c.priority == "high") {
				t.Errorf("after the end of one of two, the later request waits because %q", later.waiting)
			}
			if c.priority == "" &&
				(k.position != 1 || !strings.HasSuffix(later.positionReason(), "1 request ahead of users who used less or asked earlier, or for whom a place is freed")) {
				t.Errorf("position %d; the later one is where it is because %q", k.position, later.positionReason())
			}
			if c.closed {
				v.GPUs = slices.Clone(v.GPUs)
				v.GPUs[0].Closed, v.GPUs[1].Closed = "cordoned", "cordoned"
				tab.Update(v)
			}
			now = now.Add(10 * time.Second)
			end(t, tab, b.ID)
			var placed []string
			for _, l := range tab.Live() {
				placed = append(placed, l.Terms.Tenant)
			}
			if !slices.Equal(placed, c.placed) {
				t.Errorf("placed are %v, want %v", placed, c.placed)
			}
			now = now.Add(freedFor)
			tab.Update(v) // The choice ends,
			tab.Update(v) // and the order is that of before.
			first := ""
			for _, l := range tab.List() {
				if l.Position == 1 {
					first = l.Tenant
				}
			}
			if first != c.first {
				t.Errorf("%s is first in the queue, want %s", first, c.first)
			}
		})
	}
}

// The leases that are stopped are the fewest: no smaller set of those that may be stopped frees a place.
func TestPreemptionIsSmallest(t *testing.T) {
	// Each request has its own run of cases, so that a short run too meets those that need several leases stopped.
	stopped := map[int]int{}
	for _, requested := range []Grant{timeslice("high", "g", 50, 30*gib), mps("high", "g", 80, 30*gib), exclusive("high", "g", 2), exclusive("high", "g", 3), mig("high", "g", "3g.20gb")} {
		requested.Priority = "high"
		rapid.Check(t, func(rt *rapid.T) {
			checkPreemptionIsSmallest(t, rt, requested, stopped)
		})
	}
	t.Logf("number of leases that were stopped, and how often: %v", stopped)
	if len(stopped) < 3 {
		t.Errorf("the cases are too alike: %v", stopped)
	}
}

// One case: tenants with leases that may be stopped, and a request that waits; the number of leases stopped is counted.
func checkPreemptionIsSmallest(t *testing.T, rt *rapid.T, requested Grant, stopped map[int]int) {
	v := View{
		Generation: 1,
		GPUs: []GPUView{
			device(0, "timeslice"),
			device(1, "timeslice"),
			device(2, "mps"),
			device(3, "exclusive"),
			device(4, "exclusive"),
			device(5, "exclusive"),
			partitioned(6),
		},
	}
	n := 4
	for i := range 8 {
		tenant := fmt.Sprintf("t%d", i)
		memory, share := uint64(rapid.IntRange(5, 25).Draw(rt, "memory"))*gib, float64(rapid.IntRange(10, 60).Draw(rt, "share"))
		g := rapid.SampledFrom([]Grant{
			timeslice(tenant, "g", share, memory),
			mps(tenant, "g", share, memory),
			exclusive(tenant, "g", 1),
			exclusive(tenant, "g", 2),
			mig(tenant, "g", "1g.5gb"),
			mig(tenant, "g", "3g.20gb"),
		}).Draw(rt, "grant")
		g.Spec.MaxLeases = &n
		g.Priority = rapid.SampledFrom([]string{"low", ""}).Draw(rt, "priority")
		g.Preempt = rapid.SampledFrom([]string{api.PreemptStop, api.PreemptStop, ""}).Draw(rt, "preempt")
		v.Grants = append(v.Grants, g)
	}
	v.Grants = append(v.Grants, requested)
	tab, _ := table(t, v)
	for range 14 {
		i := rapid.IntRange(0, 7).Draw(rt, "tenant")
		if k, err := submit(tab, v.Grants[i].Tenant, "g"); err == nil {
			if _, _, err := tab.Start(t.Context(), k.ID(), Process{PID: int(k.sequence), Start: 1}); err != nil {
				rt.Fatal(err)
			}
		}
	}
	k := queue(t, tab, "high", "g")
	if isPlaced(tab, k) {
		return
	}
	// The same decision by trying every set on a copy of the table.
	state, err := tab.State()
	if err != nil {
		rt.Fatal(err)
	}
	var may []string
	for _, l := range tab.Live() {
		if l.Terms.Preempt != "" && l.State == Running && l.Terms.Kind() == requested.Kind() {
			may = append(may, l.ID)
		}
	}
	least := -1
	for mask := range 1 << len(may) {
		var ids []string
		for i := range may {
			if mask&(1<<i) != 0 {
				ids = append(ids, may[i])
			}
		}
		if least >= 0 && len(ids) >= least {
			continue
		}
		again := New(Config{Isolation: &fakeIsolation{}})
		if err := again.Restore(state); err != nil {
			rt.Fatal(err)
		}
		again.Update(v)
		for _, id := range ids {
			if err := again.Ended(t.Context(), id, ""); err != nil {
				rt.Fatal(err)
			}
		}
		if _, err := submit(again, "high", "g"); err == nil {
			least = len(ids)
		}
	}
	got := victims(tab)
	if len(got) != max(least, 0) {
		rt.Fatalf("%v are stopped; the fewest are %d of %v", got, least, may)
	}
	stopped[len(got)]++
	end(t, tab, got...)
	if len(got) > 0 && !isPlaced(tab, k) {
		rt.Fatalf("it still waits: %s", k.waiting)
	}
}
