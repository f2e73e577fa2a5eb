package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mig"
)

// UnknownProfiles are the conditions of profiles that the spec names and the driver does not have: drivers name one profile
// differently, and an upgrade may change a name by more than the 5 % that are one profile. Instances are known by the number of
// their profile, so they stay, and grants by such a name get no lease.
func UnknownProfiles(want *state.Desired, n *observe.Node) map[string]api.Condition {
	out := map[string]api.Condition{}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		e := want.GPUs[g.Identity.UUID]
		if e == nil || e.Mode != api.ModeMIG || e.MIG == nil || g.Profiles == nil || g.ProfilesAssumed {
			continue // What is assumed of a model is not what its driver says.
		}
		for _, name := range e.MIG.Layout {
			if _, err := mig.Match(*g.Profiles, mig.Request{Name: name}); err != nil {
				out[string(g.Identity.UUID)+" "+name] = api.Condition{
					GPU: string(g.Identity.UUID),
					Message: fmt.Sprintf(
						"the driver has no profile %s, which the layout of %s names%s", name, g.Identity.Name(),
						nearestProfile(g, name),
					),
					Hint: "the instances stay; write the driver's name in the layout and apply: 'gpushare mig profiles' lists the names",
				}
			}
		}
	}
	if want.Spec == nil {
		return out
	}
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.Grants {
			if c, ok := unknownOfGrant(want, n, t.Name, &t.Grants[j]); ok {
				out[t.Name+"/"+t.Grants[j].Name] = c
			}
		}
	}
	return out
}

// unknownOfGrant is the condition of a grant whose profile no GPU that it may use has; ok is false if one has it, and while that
// is not known of one.
func unknownOfGrant(want *state.Desired, n *observe.Node, tenant string, grant *api.GrantSpec) (c api.Condition, ok bool) {
	if grant.MIG == "" {
		return c, false
	}
	near := map[string]bool{}
	for _, id := range want.Grants[state.GrantKey{Tenant: tenant, Grant: grant.Name}] {
		g, found := n.GPU(id)
		if want.Mode(id) != api.ModeMIG {
			continue
		}
		if !found || g.Profiles == nil || g.ProfilesAssumed {
			return c, false
		}
		if _, err := mig.Match(*g.Profiles, mig.Request{Name: grant.MIG}); err == nil {
			return c, false
		}
		near[nearestProfile(g, grant.MIG)] = true
	}
	if len(near) == 0 {
		return c, false
	}
	c = api.Condition{
		Tenant: tenant,
		Message: fmt.Sprintf(
			"the driver has no profile %s, which grant %s of %s names%s", grant.MIG, grant.Name, tenant,
			slices.Sorted(maps.Keys(near))[0],
		),
	}
	c.Hint = "the grant gets no lease; write the driver's name and apply: 'gpushare mig profiles' lists the names"
	if p, err := gpu.ParseProfile(grant.MIG); err == nil && p.Compute == 0 {
		c.Hint += ". 'slices: " + fmt.Sprint(p.Slices) + "' instead of a name is right with every driver"
	}
	return c, true
}

// nearestProfile says how a device names the profile with the same slices and attributes and the nearest memory.
func nearestProfile(g *observe.GPU, name string) string {
	if p, ok := mig.Similar(*g.Profiles, mig.Request{Name: name}); ok {
		return fmt.Sprintf("; the nearest on %s is %s", strings.TrimSpace(g.Identity.Name()), p.Name)
	}
	return ""
}
