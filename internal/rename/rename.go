// Package rename knows what tenants and grants were called before. It is pure, and decides about no lease.
package rename

import (
	"slices"
	"time"
)

// Name names a tenant, or one of its grants.
type Name struct {
	Tenant string `json:"tenant"`
	Grant  string `json:"grant,omitempty"` // empty: the tenant
}

// Rename is one name that a spec replaced. That of a tenant is also of its grants, unless these have a rename of their own.
type Rename struct {
	Generation uint64    `json:"generation"` // of the spec
	At         time.Time `json:"at,omitzero"`
	From       Name      `json:"from"`
	To         Name      `json:"to"`
}

// List are renames in the order in which specs made them. Those of one spec are made at once: none is of the name that another gives.
type List []Rename

// most is how many renames are kept: more than revisions of the spec are.
const most = 256

// With adds the renames of a spec. The oldest of many are dropped.
func (l List) With(more List) List {
	out := append(slices.Clip(l), more...)
	if n := len(out) - most; n > 0 {
		out = slices.Clone(out[n:])
	}
	return out
}

// After are the renames of the specs after a generation.
func (l List) After(generation uint64) List {
	i := 0
	for i < len(l) && l[i].Generation <= generation {
		i++
	}
	return l[i:]
}

// In are the renames of the spec of one generation.
func (l List) In(generation uint64) List {
	out := l.After(generation - min(generation, 1))
	for i := range out {
		if out[i].Generation != generation {
			return out[:i]
		}
	}
	return out
}

// Now is what a name has become.
func (l List) Now(n Name) Name {
	for len(l) > 0 {
		one := l.In(l[0].Generation)
		n, l = one.once(n, false), l[len(one):]
	}
	return n
}

// Before is the name from which a name has become.
func (l List) Before(n Name) Name {
	for len(l) > 0 {
		one := l.In(l[len(l)-1].Generation)
		n, l = one.once(n, true), l[:len(l)-len(one)]
	}
	return n
}

// once applies the renames of one spec, or takes them back.
func (l List) once(n Name, back bool) Name {
	var tenant *Rename
	for i := range l {
		from, to := l[i].From, l[i].To
		if back {
			from, to = to, from
		}
		switch {
		case from == n:
			return to
		case from == Name{Tenant: n.Tenant}:
			tenant = &l[i]
		}
	}
	switch {
	case tenant == nil:
		return n
	case back:
		return Name{tenant.From.Tenant, n.Grant}
	}
	return Name{tenant.To.Tenant, n.Grant}
}

// Tenant is what the name of a tenant has become.
func (l List) Tenant(name string) string { return l.Now(Name{Tenant: name}).Tenant }
