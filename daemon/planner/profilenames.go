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
		for j := range e.MIG.Layout {
			item := &e.MIG.Layout[j]
			if _, err := mig.Match(*g.Profiles, state.LayoutRequest(item)); err != nil {
				out[string(g.Identity.UUID)+" "+item.String()] = unknownOfLayout(g, item, err)
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

// unknownOfLayout is the condition of an item of a layout that no profile of the device satisfies.
func unknownOfLayout(g *observe.GPU, item *api.LayoutItem, err error) api.Condition {
	c := api.Condition{GPU: string(g.Identity.UUID)}
	if item.Profile == "" {
		c.Message = fmt.Sprintf("the driver has no profile for %s in the layout of %s: %s", item, g.Identity.Name(), err)
		c.Hint = "the instances stay; write properties that a profile has in the layout and apply: 'gpushare mig profiles' lists them"
		return c
	}
	c.Message = fmt.Sprintf(
		"the driver has no profile %s, which the layout of %s names%s", item.Profile, g.Identity.Name(), nearestProfile(g, item.Profile),
	)
	c.Hint = "the instances stay; write the driver's name in the layout and apply: 'gpushare mig profiles' lists the names"
	if p, ok := propertiesOf(g, item.Profile); ok {
		c.Hint += fmt.Sprintf(". '%s' instead of a name is right with every driver", &p)
	}
	return c
}

// unknownOfGrant is the condition of a grant whose profile no GPU that it may use has; ok is false if one has it, and while that
// is not known of one.
func unknownOfGrant(want *state.Desired, n *observe.Node, tenant string, grant *api.GrantSpec) (c api.Condition, ok bool) {
	if grant.MIG == "" {
		return c, false
	}
	near := map[string]bool{}
	var properties *api.LayoutItem
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
		if p, ok := propertiesOf(g, grant.MIG); ok && properties == nil {
			properties = &p
		}
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
	if properties != nil {
		c.Hint += fmt.Sprintf(". '%s' instead of a name is right with every driver", strings.Trim(properties.String(), "{}"))
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

// propertiesOf is how a layout writes the profile that a device has instead of an unknown name: with as few properties as select it.
// ok is false for a compute instance, which has no properties, and without such a profile.
func propertiesOf(g *observe.GPU, name string) (item api.LayoutItem, ok bool) {
	req, ok := mig.Similar(*g.Profiles, mig.Request{Name: name})
	if !ok {
		return item, false
	}
	list, err := mig.Match(*g.Profiles, req)
	if n, parsed := gpu.ParseProfile(req.Name); err != nil || parsed != nil || n.Compute != 0 {
		return item, false
	}
	p := &list[0]
	for _, least := range []api.Bytes{0, api.Bytes(p.Memory >> 30 << 30), api.Bytes(p.Memory)} {
		item = api.LayoutItem{Slices: p.Slices, Attributes: p.Attributes}
		if least > 0 {
			item.GPUMemory = ">=" + least.String()
		}
		if found, err := mig.Match(*g.Profiles, state.LayoutRequest(&item)); err == nil && found[0].ID == p.ID {
			return item, true
		}
	}
	return item, false
}
