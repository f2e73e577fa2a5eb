package publish

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// instances are the MIG instances of a GPU: those of its layout, or a device for each placement where they are created on demand.
func (n *Node) instances(g *api.GPUStatus) []Offer {
	grants := n.grants(g, func(s *api.GrantSpec) bool { return s.Kind() == api.ModeMIG })
	i := slices.IndexFunc(n.MIG.GPUs, func(d api.MIGDevice) bool { return d.UUID == g.UUID })
	if len(grants) == 0 || g.MIG == nil || i < 0 {
		return nil
	}
	if g.MIG.Dynamic {
		return n.placements(g, &n.MIG.GPUs[i], grants)
	}
	return n.layout(g, &n.MIG.GPUs[i], grants)
}

// takes reports whether leases of the grant may have whole instances of the profile.
func takes(spec *api.GrantSpec, p *api.MIGProfile) bool {
	return lease.Matches(spec, lease.ProfileView{Name: p.Name, Slices: p.Slices, Memory: p.Memory, Attributes: p.Attributes})
}

// layout has a device for each instance that exists and is whole.
func (n *Node) layout(g *api.GPUStatus, d *api.MIGDevice, grants []*api.GrantSpec) []Offer {
	var out []Offer
	for i := range g.MIG.Instances {
		in := &g.MIG.Instances[i]
		j := slices.IndexFunc(d.Profiles, func(p api.MIGProfile) bool { return p.Name == in.Profile })
		if j < 0 || len(in.UUIDs) != 1 || len(in.Compute) > 0 || in.MPS != nil {
			continue // An instance that is split or shared is no device that a claim has alone.
		}
		o := n.instance(g, &d.Profiles[j], in.Placement)
		o.device.Attributes["uuid"] = text(in.UUIDs[0])
		var of []*api.GrantSpec
		for _, spec := range grants {
			if takes(spec, &d.Profiles[j]) {
				of = append(of, spec)
			}
		}
		if len(of) == 0 {
			continue
		}
		o.of(n, of)
		o.Withheld = n.withheld(g, func() string { return n.inTheWay(g, d, in.Placement) })
		out = append(out, o)
	}
	return out
}

// placements has a device for each placement of each profile that a grant names. A grant that several profiles satisfy offers none: which
// of them is created at a memory slice is then not the scheduler's choice.
func (n *Node) placements(g *api.GPUStatus, d *api.MIGDevice, grants []*api.GrantSpec) []Offer {
	of := map[string][]*api.GrantSpec{}
	for _, spec := range grants {
		var names []string
		for i := range d.Profiles {
			if takes(spec, &d.Profiles[i]) {
				names = append(names, d.Profiles[i].Name)
			}
		}
		if len(names) == 1 {
			of[names[0]] = append(of[names[0]], spec)
		}
	}
	c := countersOf(d)
	var out []Offer
	for i := range d.Profiles {
		p := &d.Profiles[i]
		if len(of[p.Name]) == 0 {
			continue
		}
		for _, at := range p.Placements {
			o := n.instance(g, p, at)
			o.of(n, of[p.Name])
			o.counters = append(o.counters, counterUse{n.name(g), c.uses(p, at)})
			o.Withheld = n.withheld(g, func() string { return n.inTheWay(g, d, at) })
			out = append(out, o)
		}
	}
	slices.SortStableFunc(out, func(a, b Offer) int { return cmp.Compare(overlaps(d, &a), overlaps(d, &b)) })
	return out
}

// overlaps is how many placements of all profiles an instance would close: the scheduler takes the first device that fits, and so keeps
// the places that the others need.
func overlaps(d *api.MIGDevice, o *Offer) int {
	sum := 0
	for i := range d.Profiles {
		for _, at := range d.Profiles[i].Placements {
			if overlap(at, api.MIGPlacement{Start: *o.Start, Size: o.size}) {
				sum++
			}
		}
	}
	return sum
}

func overlap(a, b api.MIGPlacement) bool { return a.Start < b.Start+b.Size && b.Start < a.Start+a.Size }

// instance is a device of a profile at a placement.
func (n *Node) instance(g *api.GPUStatus, p *api.MIGProfile, at api.MIGPlacement) Offer {
	start := at.Start
	o := Offer{
		Name:   fmt.Sprintf("%s-mig-%s-%d", n.name(g), nameOf(p.Name), at.Start),
		Type:   TypeMIG,
		GPU:    g.UUID,
		Start:  &start,
		index:  g.Index,
		size:   at.Size,
		device: n.device(g, TypeMIG),
	}
	o.device.Attributes["parentUUID"], o.device.Attributes["profile"] = text(g.UUID), text(p.Name)
	o.device.Attributes["placementStart"] = number(int(at.Start))
	o.device.Taints = n.taints(g, &at)
	o.device.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		"memory":          amount(p.Memory),
		"multiprocessors": count(p.SMs),
		"computeSlices":   count(p.Slices),
	}
	return o
}

// of sets the grants that give the device, and names it.
func (o *Offer) of(n *Node, grants []*api.GrantSpec) {
	for _, spec := range grants {
		o.Grants = append(o.Grants, spec.Name)
	}
	o.limitedBy(n, grants)
	o.named()
}

// nameOf is the name of a profile as part of the name of a device.
func nameOf(profile string) string {
	return strings.NewReplacer(".", "-", "+", "-with-", "-me", "-without-me").Replace(profile)
}

// inTheWay is why no claim gets an instance at a placement; empty: one may. What a claim has is not in the way: the scheduler counts it.
func (n *Node) inTheWay(g *api.GPUStatus, d *api.MIGDevice, at api.MIGPlacement) string {
	for i := range d.Instances {
		in := &d.Instances[i]
		if why := n.taken(g, in); why != "" && overlap(in.Placement, at) {
			return why
		}
	}
	return ""
}

// taken is why an instance is not for claims; empty: it is, or it is removed when its place is needed.
func (n *Node) taken(g *api.GPUStatus, in *api.MIGInstance) string {
	name := fmt.Sprintf("instance %s at %d", in.Profile, in.Placement.Start)
	if in.Foreign {
		return name + " is not managed by gpushare"
	}
	for i := range g.MIG.Instances {
		x := &g.MIG.Instances[i]
		if x.Placement != in.Placement {
			continue
		}
		for _, id := range append(slices.Clone(x.Leases), x.Lease) {
			j := slices.IndexFunc(n.Status.Leases, func(l api.Lease) bool { return l.ID == id })
			switch {
			case j >= 0 && ofClaims(&n.Status.Leases[j]):
				return ""
			case j >= 0:
				return name + ": " + usedBy(&n.Status.Leases[j])
			}
		}
	}
	if in.InUse || in.Kept {
		return name + " is in use"
	}
	return ""
}
