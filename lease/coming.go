package lease

import "cmp"

// coming are the grants of a spec that is being accepted. A request that would have less at once than it is promised is refused from
// before the live leases are compared with that spec until the table has it.
type coming struct {
	generation uint64
	grants     map[Key]Grant // by the names that they have now
}

// Expect names the grants of a spec that is being accepted, by their names until then. Update with that spec ends it, and withdraw if it
// is not accepted.
func (t *Table) Expect(generation uint64, grants map[Key]Grant) (withdraw func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := &coming{generation, grants}
	t.coming = mine
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.coming == mine {
			t.coming = nil
		}
		t.evaluateLocked()
	}
}

// refuses is why a lease with the amounts of its request does not fit into its grant, as it is and as it will be, next to the other leases
// of the grant, of which there may be none. Empty: it does.
func (s *grantShare) refuses(g *Grant, who *requester, use func(id string) *uint64) string {
	if why := who.coming.lacks(g, s, who.amounts); why != "" || s == nil {
		return why
	}
	return cmp.Or(s.own.lacks(g, s.leases, who.amounts), s.own.takes(g, who.amounts, use))
}

// comingEndsLocked ends the wait for a spec that the table has.
func (t *Table) comingEndsLocked() {
	if t.coming != nil && t.view.Generation >= t.coming.generation {
		t.coming = nil
	}
}

// lacks is why a lease of the grant with these amounts would have less than that under the spec that is being accepted; empty: it would
// not, or the grant is removed or of another kind, which leases end with.
func (c *coming) lacks(g *Grant, have *grantShare, want Own) string {
	if c == nil {
		return ""
	}
	next, ok := c.grants[g.Key()]
	if !ok || next.Kind() != g.Kind() {
		return ""
	}
	own, leases := &ownUse{}, 0
	if have != nil {
		own, leases = &have.own, have.leases
	}
	if why := cmp.Or(want.exceeds(&next), own.lacks(&next, leases, want)); why != "" {
		return "under the spec that is being applied " + why
	}
	return ""
}
