package lease

import (
	"fmt"
	"slices"
	"strings"
)

// Newcomer is something on the node that the spec may take into a grant by itself: all logins of a user, or a unit.
type Newcomer struct {
	Origin string // OriginLogin or OriginUnit
	Name   string // of the user, or of the unit
	UID    int    // of the user
	Cgroup string // where its processes are
	Unit   string
	Unsure bool  // whose it is could not be found out in full: nobody loses a lease for that
	Claims []Key // the grants of the tenants that adopt it; one tenant may have it, several may not
}

// Same tells whether a lease is of this newcomer. A user whose last login ended and who is back is another one when the
// cgroup is another.
func (n *Newcomer) Same(l *Lease) bool {
	return l.Origin == n.Origin && l.Unit == n.Unit && l.Cgroup == n.Cgroup && (n.Origin != OriginLogin || l.UID == n.UID)
}

// What says for people what it is.
func (n *Newcomer) What() string {
	if n.Origin == OriginLogin {
		return "the logins of " + n.Name
	}
	return "unit " + n.Name
}

// Adoption is what to do so that exactly those are adopted whom the spec adopts.
type Adoption struct {
	Begin    []Newcomer        // each with one claim
	End      map[string]string // leases, and why
	Disputed map[string]string // what is left to nobody, by its unit, and why
}

// Adopt decides it. A lease whose newcomer is not here any more is left to whoever watches its processes: it ends with the
// last of them.
func Adopt(here []Newcomer, live []Lease) Adoption {
	out := Adoption{End: map[string]string{}, Disputed: map[string]string{}}
	for _, n := range here {
		i := slices.IndexFunc(live, func(l Lease) bool { return n.Same(&l) })
		claim, why := n.claim()
		if why != "" {
			out.Disputed[n.Unit] = why
		}
		switch {
		case n.Unsure && i >= 0:
		case i < 0 && claim != nil:
			n.Claims = []Key{*claim}
			out.Begin = append(out.Begin, n)
		case i >= 0 && why != "":
			out.End[live[i].ID] = why
		case i >= 0 && claim == nil:
			out.End[live[i].ID] = "the spec does not adopt " + n.What() + " any more"
		case i >= 0 && *claim != live[i].Terms.Key():
			out.End[live[i].ID] = fmt.Sprintf("the spec adopts %s into %s of %s now", n.What(), claim.Grant, claim.Tenant)
		}
	}
	return out
}

// claim is the one claim on it; nil without one, and why there is none although there are several.
func (n *Newcomer) claim() (*Key, string) {
	var tenants []string
	for _, c := range n.Claims {
		if !slices.Contains(tenants, c.Tenant) {
			tenants = append(tenants, c.Tenant)
		}
	}
	switch len(tenants) {
	case 0:
		return nil, ""
	case 1:
		return &n.Claims[0], ""
	}
	return nil, fmt.Sprintf("%s are adopted by %s: one tenant may, so none does", n.What(), strings.Join(tenants, " and "))
}
