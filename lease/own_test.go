package lease

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
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
