package lease

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// ownView has one time-sliced GPU and a grant of 30 % and 12 GiB.
func ownView() View {
	return View{Generation: 1, GPUs: []GPUView{device(0, api.ModeTimeslice)}, Grants: []Grant{timeslice("a", "x", 30, 12*gib)}}
}

// Leases with amounts of their own have together at most what their grant has, and the others have what is left.
func TestOwnAmounts(t *testing.T) {
	t.Parallel()
	type request struct {
		own  Own
		says string // of the refusal; empty: it is placed
	}
	for _, c := range []struct {
		name     string
		requests []request
	}{
		{"all of the grant in two", []request{{own: Own{Memory: 8 * gib}}, {own: Own{Memory: 4 * gib}}, {own: Own{Memory: gib}, says: "0 of its 12 GiB left"}}},
		{"more than is left", []request{{own: Own{Memory: 8 * gib}}, {own: Own{Memory: 5 * gib}, says: "4 GiB of its 12 GiB left"}, {own: Own{Memory: 4 * gib}}}},
		{"more than there is", []request{{own: Own{Memory: 13 * gib}, says: "grant x has 12 GiB"}}},
		{"others have what is left", []request{{own: Own{Memory: 8 * gib}}, {}, {own: Own{Memory: 4 * gib}, says: "4 GiB of its 12 GiB left"}, {own: Own{Memory: 3 * gib}}}},
		{"nothing is left for others", []request{{own: Own{Memory: 12 * gib}}, {says: "0 of its 12 GiB left"}}},
		{"shares", []request{{own: Own{Share: 20}}, {own: Own{Share: 11}, says: "10% of its 30% left"}, {own: Own{Share: 10}}, {says: "0% of its 30% left"}}},
		{"more share than there is", []request{{own: Own{Share: 31}, says: "grant x has 30%"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tab, _ := table(t, ownView())
			for i, r := range c.requests {
				_, err := tab.Submit(Request{
					Tenant: "a", Admin: true, Origin: OriginAttached, Engine: &Engine{Key: "slurm:" + string(rune('a'+i))}, Own: r.own,
				})
				if r.says == "" && err != nil || r.says != "" && (err == nil || !strings.Contains(err.Error(), r.says)) {
					t.Errorf("request %d of %+v: %v, want %q", i, r.own, err, r.says)
				}
			}
		})
	}
}

// A lease has its own share, and the others of its grant have the rest.
func TestOwnShareIsEntitled(t *testing.T) {
	t.Parallel()
	tab, _ := table(t, ownView())
	want := map[string]float64{}
	for i, share := range []float64{12, 0, 0} {
		k, err := tab.Submit(Request{
			Tenant: "a", Admin: true, Origin: OriginAttached, Engine: &Engine{Key: "slurm:" + string(rune('a'+i))}, Own: Own{Share: share},
		})
		if err != nil {
			t.Fatal(err)
		}
		want[k.ID()] = 9
		if share > 0 {
			want[k.ID()] = share
		}
	}
	for id, e := range Entitled(tab.Live()) {
		if e != want[id] {
			t.Errorf("lease %s is entitled to %v %%, want %v", id, e, want[id])
		}
	}
}

// placeOwn requests a lease with amounts of its own.
func placeOwn(t *testing.T, tab *Table, key string, own Own) (string, error) {
	t.Helper()
	k, err := tab.Submit(Request{Tenant: "a", Admin: true, Origin: OriginAttached, Engine: &Engine{Key: key}, Own: own})
	if err != nil {
		return "", err
	}
	return k.ID(), nil
}

// A lease gets no memory of its own that other leases of the grant use, and what those may use is shown.
func TestOwnMemoryIsNotTakenFromWhatIsUsed(t *testing.T) {
	t.Parallel()
	var used *uint64
	tab := New(Config{Isolation: &fakeIsolation{}, MemoryUse: func(string, gpu.UUID) *uint64 { return used }})
	tab.Update(ownView())
	plain := started(t, tab, "a", "x")
	for _, c := range []struct {
		name string
		used *uint64
		own  uint64
		says string // empty: it is placed
	}{
		{"not measured", nil, gib, "how much of the memory of grant x its lease " + plain.ID + " uses is not known"},
		{"used by another", new(uint64(10 * gib)), 8 * gib, "grant x has 12 GiB of its 12 GiB left, and its leases without an amount of their own use 10 GiB"},
		{"what is left", new(uint64(10 * gib)), 2 * gib, ""},
		{"after that", new(uint64(10 * gib)), gib, "grant x has 10 GiB of its 12 GiB left"},
	} {
		used = c.used
		_, err := placeOwn(t, tab, "slurm:"+strings.ReplaceAll(c.name, " ", "-"), Own{Memory: c.own})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
	l, _ := tab.Get(plain.ID)
	if m, shown := l.Memory(), l.Wire().GPUMemory.Limit; m != 10*gib || shown != m {
		t.Errorf("the other lease has %d GiB, and %d GiB are shown; want 10", m/gib, shown/gib)
	}
}

// What a lease loses of what it has for itself, or next to leases that have something for themselves, when its grant is changed.
func TestLosesOwnAmounts(t *testing.T) {
	t.Parallel()
	unlimited := timeslice("a", "x", 30, 0)
	unlimited.Spec.Timeslice.GPUMemory = nil
	for _, c := range []struct {
		name     string
		own      []Own
		now      Grant
		first    string // what the first of the leases loses; empty: nothing
		ordinary string // what one without amounts of its own loses
	}{
		{"the same", []Own{{8 * gib, 20}}, timeslice("a", "x", 30, 12*gib), "", ""},
		{"less than was granted, enough", []Own{{8 * gib, 0}}, timeslice("a", "x", 30, 9*gib), "", ""},
		{"nothing for others", []Own{{8 * gib, 0}}, timeslice("a", "x", 30, 8*gib), "", "no GPU memory is left for it: grant x has 8 GiB, and other leases have 8 GiB"},
		{"too little", []Own{{8 * gib, 0}, {2 * gib, 0}}, timeslice("a", "x", 30, 5*gib), "it keeps 4 GiB of its own 8 GiB of GPU memory: grant x has 5 GiB, and its leases have 10 GiB", "no GPU memory is left for it"},
		{"too little share", []Own{{0, 20}}, timeslice("a", "x", 10, 12*gib), "it keeps 10% of its own 20% of share", "no share is left for it: grant x has 10%"},
		{"no limit", []Own{{8 * gib, 0}}, unlimited, "its own 8 GiB of GPU memory end: grant x has no gpu_memory", ""},
		{"another kind", []Own{{8 * gib, 20}}, exclusive("a", "x", 1), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tab, _ := table(t, ownView())
			var ids []string
			for i, own := range append(c.own, Own{}) {
				id, err := placeOwn(t, tab, fmt.Sprintf("slurm:%d", i), own)
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
			for id, want := range map[string]string{ids[0]: c.first, ids[len(ids)-1]: c.ordinary} {
				l, _ := tab.Get(id)
				if why := l.Loses(&c.now); !strings.HasPrefix(why, want) || want == "" && why != "" {
					t.Errorf("a lease with %+v loses %q, want %q", l.Own, why, want)
				}
			}
		})
	}
}

// A grant that has less than its leases have for themselves gives each its part of that.
func TestOwnAmountsOfASmallerGrant(t *testing.T) {
	t.Parallel()
	tab, _ := table(t, ownView())
	want := map[string]Own{}
	for key, own := range map[string]Own{"slurm:1": {8 * gib, 20}, "slurm:2": {4 * gib, 10}} {
		id, err := placeOwn(t, tab, key, own)
		if err != nil {
			t.Fatal(err)
		}
		want[id] = Own{own.Memory / 2, own.Share / 2}
	}
	smaller := ownView()
	smaller.Generation, smaller.Grants = 2, []Grant{timeslice("a", "x", 15, 6*gib)}
	tab.Update(smaller)
	for _, w := range tab.List() {
		l, _ := tab.Get(w.ID)
		if got := (Own{w.GPUMemory.Limit, w.Share.Entitled}); got != want[w.ID] || l.Memory() != got.Memory || l.Share() != got.Share {
			t.Errorf("lease %s has %+v of %+v, want %+v", w.ID, got, l.Own, want[w.ID])
		}
	}
}

// No lease is stopped for a request that its end would give no place: keyed leases have all of the grant for themselves.
func TestNoLeaseIsStoppedForWhatKeyedLeasesHave(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]Own{"memory": {Memory: 12 * gib}, "share": {Share: 30}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := ownView()
			v.Grants = append(v.Grants, low(timeslice("batch", "g", 30, 20*gib)))
			tab, _ := table(t, v)
			key, err := placeOwn(t, tab, "slurm:1", own)
			if err != nil {
				t.Fatal(err)
			}
			run(t, tab, "batch", "g")
			k := queue(t, tab, "a", "x")
			if got := victims(tab); got != nil {
				t.Errorf("stopped are %v, and the request waits for the end of %s", got, key)
			}
			if ok, err := tab.DropUnbound(t.Context(), key, "it had no process"); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if !isPlaced(tab, k) {
				t.Error("it waits on without them")
			}
		})
	}
}
