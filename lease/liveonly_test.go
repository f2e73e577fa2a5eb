package lease

import (
	"fmt"
	"slices"
	"testing"
)

// full is a table with 8 GPUs and 64 leases that share them.
func full(t *testing.T) *Table {
	t.Helper()
	v := View{}
	for i := range 8 {
		v.GPUs = append(v.GPUs, device(i, "timeslice"))
	}
	for i := range 64 {
		v.Grants = append(v.Grants, timeslice(fmt.Sprintf("t%02d", i), "g", 10, gib))
	}
	tab := New(Config{Isolation: &fakeIsolation{}})
	tab.Update(v)
	for i := range 64 {
		if _, err := tab.Submit(Request{Tenant: fmt.Sprintf("t%02d", i), Admin: true}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(tab.Live()); n != 64 {
		t.Fatalf("%d leases, want 64", n)
	}
	return tab
}

func TestLiveOnly(t *testing.T) {
	tab := full(t)
	first := tab.Live()[1].Place.GPUs[0]
	onFirst := func(l *Lease) bool { return l.Place.GPUs[0] == first }
	var want []Lease
	for _, l := range tab.Live() {
		if onFirst(&l) {
			want = append(want, l)
		}
	}
	same := func(a, b Lease) bool {
		return a.ID == b.ID && a.Generation == b.Generation && a.OwnTogether == b.OwnTogether
	}
	if got := tab.LiveOnly(onFirst); len(got) != 8 || !slices.EqualFunc(got, want, same) {
		t.Errorf("%d leases, want the 8 of Live on that GPU, oldest first", len(got))
	}
	ids := tab.LiveIDs(onFirst)
	if !slices.EqualFunc(ids, want, func(id string, l Lease) bool { return id == l.ID }) {
		t.Errorf("ids %v, want those of the leases, oldest first", ids)
	}
}
