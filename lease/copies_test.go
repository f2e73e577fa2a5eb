//go:build !lockcheck

package lease

import "testing"

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
