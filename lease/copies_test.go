//go:build !lockcheck

package lease

import (
	"fmt"
	"testing"
)

// What a loop does not ask for is not copied: a reading of all 64 leases makes 58 KB of garbage. The
// check of the order of locks makes some for each lock.
func TestReadingsOfLeasesCopyOnlyThose(t *testing.T) {
	tab := full(t)
	last := tab.Live()[63].ID
	none := func(*Lease) bool { return false }
	one := func(l *Lease) bool { return l.ID == last }
	for _, c := range []struct {
		name string
		most float64
		read func()
	}{
		{"the ids of none", 0, func() { tab.LiveIDs(none) }},
		{"copies of none", 0, func() { tab.LiveOnly(none) }},
		{"the id of one", 2, func() { tab.LiveIDs(one) }},
		{"a copy of one", 2, func() { tab.LiveOnly(one) }},
		{"one by its id", 0, func() { tab.Get(last) }},
	} {
		if got := testing.AllocsPerRun(100, c.read); got > c.most {
			t.Errorf("%s: %v allocations, want at most %v", c.name, got, c.most)
		}
	}
}

// The places of the next leases are searched with one account of what is in use. An account for each of 64 grants made 1.6 MB of garbage,
// whenever a lease had started or ended.
func TestPreviewsHaveOneAccountOfWhatIsInUse(t *testing.T) {
	v := View{}
	for i := range 8 {
		d := device(i, "mig")
		for j := range uint32(7) {
			d.Instances = append(d.Instances, instance(i, "1g.5gb", 1, j, 1, 5*gib))
		}
		v.GPUs = append(v.GPUs, d)
	}
	for i := range 64 {
		v.Grants = append(v.Grants, mig(fmt.Sprintf("t%d", i), "g", "1g.5gb"))
	}
	tab, _ := table(t, v)
	mustSubmit(t, tab, "t0", "g")
	if n := len(tab.Previews()); n != 63 { // t0 has its one lease.
		t.Errorf("%d grants have a place for their next lease, want 63", n)
	}
	if got, most := testing.AllocsPerRun(20, func() { tab.Previews() }), 500.0; got > most {
		t.Errorf("%v allocations, want at most %v", got, most)
	}
}
