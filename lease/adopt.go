package lease

import (
	"fmt"
	"slices"
	"strings"
)

// AdoptionCandidate is something on the node that the spec may adopt into a grant: all logins of a user, or a unit.
type AdoptionCandidate struct {
	Origin            string // OriginLogin or OriginUnit
	Name              string // of the user, or of the unit
	UID               int    // of the user
	Cgroup            string // of its processes
	Unit              string
	MembershipUnknown bool  // not all of the user's tenants could be read: an existing lease is kept
	Claims            []Key // the grants of the tenants that adopt it; it is adopted only if all are of one tenant
}

// Matches reports whether a lease is of this candidate. A user whose last login ended and who logs in again is another
// candidate if the cgroup is another.
func (c *AdoptionCandidate) Matches(l *Lease) bool {
	return l.Origin == c.Origin && l.Unit == c.Unit && l.Cgroup == c.Cgroup && (c.Origin != OriginLogin || l.UID == c.UID)
}

// Description names the candidate in messages.
func (c *AdoptionCandidate) Description() string {
	if c.Origin == OriginLogin {
		return "the logins of " + c.Name
	}
	return "unit " + c.Name
}

// AdoptionPlan is what to do so that exactly those candidates are adopted that the spec adopts.
type AdoptionPlan struct {
	Begin    []AdoptionCandidate // each with one claim
	End      map[string]string   // lease id to reason
	Disputed map[string]string   // unit to the reason why it is not adopted
}

// PlanAdoption plans it. A lease whose candidate is no longer there is not ended here: the watcher of its processes
// ends it with the last of them.
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
			out.End[live[i].ID] = fmt.Sprintf(
				"the spec adopts %s into grant %s of tenant %s now", c.Description(), claim.Grant, claim.Tenant,
			)
		}
	}
	return out
}

// claim returns the one claim on the candidate; nil if there is none, or if several tenants claim it, with the reason.
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
	return nil, fmt.Sprintf("several tenants adopt %s (%s): only one tenant may", c.Description(), strings.Join(tenants, " and "))
}
