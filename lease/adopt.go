package lease

import (
	"fmt"
	"slices"
	"strings"
)

// AdoptionCandidate is something on the node that the spec may take into a grant by itself: all logins of a user, or a unit.
type AdoptionCandidate struct {
	Origin            string // OriginLogin or OriginUnit
	Name              string // of the user, or of the unit
	UID               int    // of the user
	Cgroup            string // where its processes are
	Unit              string
	MembershipUnknown bool  // whose it is could not be found out in full: nobody loses a lease for that
	Claims            []Key // the grants of the tenants that adopt it; one tenant may have it, several may not
}

// Matches tells whether a lease is of this newcomer. A user whose last login ended and who is back is another one when the
// cgroup is another.
func (c *AdoptionCandidate) Matches(l *Lease) bool {
	return l.Origin == c.Origin && l.Unit == c.Unit && l.Cgroup == c.Cgroup && (c.Origin != OriginLogin || l.UID == c.UID)
}

// Description says for people what it is.
func (c *AdoptionCandidate) Description() string {
	if c.Origin == OriginLogin {
		return "the logins of " + c.Name
	}
	return "unit " + c.Name
}

// AdoptionPlan is what to do so that exactly those are adopted whom the spec adopts.
type AdoptionPlan struct {
	Begin    []AdoptionCandidate // each with one claim
	End      map[string]string   // leases, and why
	Disputed map[string]string   // what is left to nobody, by its unit, and why
}

// PlanAdoption decides it. A lease whose newcomer is not here any more is left to whoever watches its processes: it ends with the
// last of them.
func PlanAdoption(candidates []AdoptionCandidate, live []Lease) AdoptionPlan {
	out := AdoptionPlan{End: map[string]string{}, Disputed: map[string]string{}}
	for _, c := range candidates {
		i := slices.IndexFunc(live, func(l Lease) bool { return c.Matches(&l) })
		claim, why := c.claim()
		if why != "" {
			out.Disputed[c.Unit] = why
		}
		switch {
		case c.MembershipUnknown && i >= 0:
		case i < 0 && claim != nil:
			c.Claims = []Key{*claim}
			out.Begin = append(out.Begin, c)
		case i >= 0 && why != "":
			out.End[live[i].ID] = why
		case i >= 0 && claim == nil:
			out.End[live[i].ID] = "the spec does not adopt " + c.Description() + " any more"
		case i >= 0 && *claim != live[i].Terms.Key():
			out.End[live[i].ID] = fmt.Sprintf("the spec adopts %s into %s of %s now", c.Description(), claim.Grant, claim.Tenant)
		}
	}
	return out
}

// claim is the one claim on it; nil without one, and why there is none although there are several.
func (c *AdoptionCandidate) claim() (*Key, string) {
	var tenants []string
	for _, c := range c.Claims {
		if !slices.Contains(tenants, c.Tenant) {
			tenants = append(tenants, c.Tenant)
		}
	}
	switch len(tenants) {
	case 0:
		return nil, ""
	case 1:
		return &c.Claims[0], ""
	}
	return nil, fmt.Sprintf("%s are adopted by %s: one tenant may, so none does", c.Description(), strings.Join(tenants, " and "))
}
