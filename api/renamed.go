package api

import (
	"fmt"
	"strings"
)

// renamed is one item of a list whose items have names and may say which they had before.
type renamed struct{ name, from string }

// renames refuses former names that do not say which leases go on under which name.
func (c *checker) renames(list, what string, items []renamed) {
	names, from := map[string]int{}, map[string]int{}
	for i, it := range items {
		if it.name != "" {
			names[it.name] = i
		}
	}
	for i, it := range items {
		if it.from == "" {
			continue
		}
		p := fmt.Sprintf("%s[%d].renamed_from", list, i)
		at, kept := names[it.from]
		first, twice := from[it.from]
		switch {
		case it.from == it.name:
			c.add(p, "%s is the name that the %s has already: write the one that it had before, or remove this key", quote(it.from), what)
		case what == "grant" && strings.Contains(it.from, "/"):
			c.add(
				p,
				"%s is of a tenant: a grant cannot be moved to another one, whose members and limits its leases do not have; write the name of a grant of this tenant",
				quote(it.from),
			)
		case kept:
			c.add(
				p,
				"%s is the name of %s[%d] too: remove that item if it is renamed, and this key if it is not; two names are swapped by way of a third, one apply after the other",
				quote(it.from),
				list,
				at,
			)
		case twice:
			c.add(p, "%s is what %s[%d] was already: the leases of one %s go on under one name", quote(it.from), list, first, what)
		default:
			c.name(p, it.from, what)
		}
		if !twice {
			from[it.from] = i
		}
	}
}

func (c *checker) tenantRenames(tenants []TenantSpec) {
	var items []renamed
	for i := range tenants {
		items = append(items, renamed{tenants[i].Name, tenants[i].RenamedFrom})
	}
	c.renames("tenants", "tenant", items)
}

func (c *checker) grantRenames(at string, grants []GrantSpec) {
	var items []renamed
	for i := range grants {
		items = append(items, renamed{grants[i].Name, grants[i].RenamedFrom})
	}
	c.renames(at+".grants", "grant", items)
}
