package spec

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/rename"
)

// Renames are the names of a spec in force that another spec replaces: was and is are the two. A former name that the spec in force does
// not have is of a rename that was made before. The error is of fields; Located gives them their positions.
func Renames(was, is *api.Spec, generation uint64) (rename.List, error) {
	if was == nil || is == nil {
		return nil, nil
	}
	r := renames{generation: generation}
	for i := range is.Tenants {
		t := &is.Tenants[i]
		before := tenantOf(was, t.Name)
		if from := tenantOf(was, t.RenamedFrom); from != nil && t.RenamedFrom != "" {
			if before != nil {
				r.fail(fmt.Sprintf("tenants[%d]", i), "tenant", t.RenamedFrom, t.Name)
			}
			r.add(rename.Name{Tenant: t.RenamedFrom}, rename.Name{Tenant: t.Name})
			before = from
		}
		if before != nil {
			r.grants(fmt.Sprintf("tenants[%d]", i), before, t)
		}
	}
	if len(r.found) > 0 {
		return nil, &api.Error{Kind: api.KindInvalid, Message: r.found[0].Error(), Fields: r.found}
	}
	return r.out, nil
}

type renames struct {
	generation uint64
	out        rename.List
	found      []api.FieldError
}

func (r *renames) grants(at string, was, is *api.TenantSpec) {
	for j := range is.Grants {
		g := &is.Grants[j]
		if g.RenamedFrom == "" || !hasGrant(was, g.RenamedFrom) {
			continue
		}
		if hasGrant(was, g.Name) {
			r.fail(fmt.Sprintf("%s.grants[%d]", at, j), "grant", g.RenamedFrom, g.Name)
		}
		r.add(rename.Name{Tenant: was.Name, Grant: g.RenamedFrom}, rename.Name{Tenant: is.Name, Grant: g.Name})
	}
}

func (r *renames) add(from, to rename.Name) {
	r.out = append(r.out, rename.Rename{Generation: r.generation, From: from, To: to})
}

func (r *renames) fail(at, what, from, to string) {
	r.found = append(r.found, api.FieldError{
		Path: at + ".renamed_from",
		Message: fmt.Sprintf(
			"%s %s cannot become %s: the spec in force has both, and the leases of two are not put together; remove this key, or let one of them end first",
			what,
			from,
			to,
		),
	})
}

// Back are the renames that take back those after an earlier spec: is is that spec, was the one in force, recorded are all renames.
func Back(was, is *api.Spec, earlier, generation uint64, recorded rename.List) rename.List {
	if was == nil || is == nil {
		return nil
	}
	r, since := renames{generation: generation}, recorded.After(earlier)
	for i := range is.Tenants {
		t := &is.Tenants[i]
		now := since.Now(rename.Name{Tenant: t.Name})
		before := tenantOf(was, now.Tenant)
		switch {
		case before == nil:
			continue
		case now.Tenant != t.Name && (tenantOf(was, t.Name) != nil || tenantOf(is, now.Tenant) != nil):
			continue // The name was given to another tenant since.
		case now.Tenant != t.Name:
			r.add(now, rename.Name{Tenant: t.Name})
		}
		for j := range t.Grants {
			name := t.Grants[j].Name
			g := since.Now(rename.Name{Tenant: t.Name, Grant: name})
			if g.Tenant == before.Name && g.Grant != name && hasGrant(before, g.Grant) && !hasGrant(before, name) && !hasGrant(t, g.Grant) {
				r.add(g, rename.Name{Tenant: t.Name, Grant: name})
			}
		}
	}
	return r.out
}

func tenantOf(s *api.Spec, name string) *api.TenantSpec {
	for i := range s.Tenants {
		if s.Tenants[i].Name == name {
			return &s.Tenants[i]
		}
	}
	return nil
}

func hasGrant(t *api.TenantSpec, name string) bool {
	for i := range t.Grants {
		if t.Grants[i].Name == name {
			return true
		}
	}
	return false
}
