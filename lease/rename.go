package lease

import (
	"maps"

	"github.com/gpushare/gpushare/internal/rename"
)

// Rename gives what the table has of tenants and grants the names that a spec gives them. recorded are all renames that are recorded: those
// that the table has already are not made again, also after a restart. accept puts the spec in force; it is called with the lock held,
// so that no request is compared with members of another name, and may take only locks that come after the table's.
func (t *Table) Rename(recorded rename.List, generation uint64, accept func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if accept != nil {
		accept()
	}
	t.renames = recorded
	// A spec from before the first one that this table saw is not known to be newer than its names.
	if list := recorded.After(t.named); len(list) > 0 {
		t.renameLocked(list)
	}
	t.named = max(t.named, generation)
}

func (t *Table) renameLocked(list rename.List) {
	t.countUseLocked() // What was used until now is that of the names until now.
	for _, e := range t.sortedLocked() {
		if e.ticket != nil {
			e.ticket.renameLocked(list) // Its user is confirmed before it starts, and it may be queued again.
		}
		if !e.renamed(list) {
			continue
		}
		t.changedLocked(&e.Lease)
		t.noticeLocked(e, "lease.renamed", "its grant is "+e.Terms.Spec.Name+" of "+e.Terms.Tenant+" now")
	}
	for _, k := range t.queue {
		k.renameLocked(list)
	}
	t.reserved = renamedKeys(t.reserved, list)
	t.lately.rename(list)
	t.owed.Rename(list)
	// The view is renewed with the next observation.
	grants := make([]Grant, len(t.view.Grants))
	for i, g := range t.view.Grants {
		g.rename(list)
		grants[i] = g
	}
	t.view.Grants = grants
	t.version++
}

func (k *Ticket) renameLocked(list rename.List) {
	k.lease.renamed(list)
	k.tenant = list.Tenant(k.tenant)
	k.request.rename(list)
	candidates := make([]Grant, len(k.candidates))
	for i, g := range k.candidates {
		g.rename(list)
		candidates[i] = g
	}
	k.candidates = candidates
	if k.preempt != nil {
		k.preempt.grant = Key(list.Now(rename.Name(k.preempt.grant)))
		k.preempt.grants = renamedKeys(k.preempt.grants, list)
	}
}

func renamedKeys[V any](m map[Key]V, list rename.List) map[Key]V {
	out := make(map[Key]V, len(m))
	for k, v := range m {
		out[Key(list.Now(rename.Name(k)))] = v
	}
	return out
}

// rename gives a grant its name under the renames.
func (g *Grant) rename(list rename.List) {
	k := list.Now(rename.Name(g.Key()))
	g.Tenant, g.Spec.Name = k.Tenant, k.Grant
}

// renamed gives a lease the name of its grant under the renames, and reports whether that is another one. Its cgroup stays where it is.
func (l *Lease) renamed(list rename.List) bool {
	was := l.SliceKey()
	before := l.Terms.Key()
	l.Terms.rename(list)
	if l.Terms.Key() == before {
		return false
	}
	if l.Engine != nil {
		l.Engine = l.Engine.renamed(l.Terms.Key())
	}
	if l.Slice = was; was == l.Terms.Key() || !l.inSlice() {
		l.Slice = Key{}
	}
	return true
}

// renamed is a copy that names the grant as it is called now, as far as its request named it. Copies of the lease share the one before.
func (e *Engine) renamed(now Key) *Engine {
	out := *e
	if out.Terms.Tenant != "" {
		out.Terms.Tenant = now.Tenant
	}
	if out.Terms.Grant != "" {
		out.Terms.Grant = now.Grant
	}
	return &out
}

// rename gives a request the names under the renames.
func (r *Request) rename(list rename.List) {
	if r.Tenant != "" {
		k := list.Now(rename.Name{Tenant: r.Tenant, Grant: r.Grant})
		r.Tenant, r.Grant = k.Tenant, k.Grant
	} else if r.Grant != "" { // Of the one tenant that has it.
		for _, m := range r.Member {
			if k := list.Now(rename.Name{Tenant: m, Grant: r.Grant}); k.Grant != r.Grant {
				r.Grant = k.Grant
				break
			}
		}
	}
	member := make([]string, len(r.Member))
	for i, m := range r.Member {
		member[i] = list.Tenant(m)
	}
	r.Member = member
}

// rename gives what was used the names under the renames.
func (u *lately) rename(list rename.List) {
	out := make(map[member]float64, len(u.used))
	for m, n := range maps.All(u.used) {
		out[member{list.Tenant(m.tenant), m.uid}] += n
	}
	u.used = out
}

// LiveUnder is Live with the names that the table will have once these renames are recorded.
func (t *Table) LiveUnder(recorded rename.List) []Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.copiesLocked()
	if list := recorded.After(t.named); len(list) > 0 {
		for i := range out {
			out[i].renamed(list)
		}
	}
	return out
}

// inSlice reports whether the lease's processes are below the cgroup slice of its grant.
func (l *Lease) inSlice() bool { return !l.InPlace() || l.Origin == OriginContainer }

// SliceKey is the grant after which the cgroup slice of the lease is named: its own, or one that its grant was called before.
func (l *Lease) SliceKey() Key {
	if l.Slice != (Key{}) {
		return l.Slice
	}
	return l.Terms.Key()
}

// sliceLocked is the slice of a new lease of a grant, as in Lease.Slice. While leases run in the slices of a former name further ones
// join them there, so that the limits of the tenant hold for all of them together.
func (t *Table) sliceLocked(k Key) Key {
	var tenant string
	for _, e := range t.sortedLocked() {
		if e.Slice == (Key{}) || e.Terms.Tenant != k.Tenant {
			continue
		}
		if e.Terms.Key() == k {
			return e.Slice
		}
		tenant = e.Slice.Tenant
	}
	if tenant == "" || tenant == k.Tenant {
		return Key{}
	}
	return Key{tenant, k.Grant}
}

// SliceOf is the grant after which the cgroup slice of a new lease of a grant is named.
func (t *Table) SliceOf(k Key) Key {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sliceLocked(k); s != (Key{}) {
		return s
	}
	return k
}
