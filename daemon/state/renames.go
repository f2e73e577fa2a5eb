package state

import "github.com/gpushare/gpushare/internal/store"

// RecordRenames records the names that an accepted spec replaces, in the write that accepts it, and gives them to what is recorded next
// to it. The leases, which are in another file, get them afterwards, or when the daemon starts again.
func RecordRenames(s *store.State, want *Desired) {
	s.Renames = want.Renames
	list := want.Renames.In(want.Generation)
	if len(list) == 0 {
		return
	}
	closures := make([]store.Closure, len(s.Closures))
	for i, c := range s.Closures {
		if c.Tenant != "" {
			c.Tenant = list.Tenant(c.Tenant)
		}
		closures[i] = c
	}
	s.Closures = closures
}
