package publish

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
)

// whole is a GPU that a lease has alone. The scheduler gives it to a claim of one GPU too, so it is not offered unless a grant is of one.
func (n *Node) whole(g *api.GPUStatus) []Offer {
	grants := n.grants(g, func(s *api.GrantSpec) bool { return s.Kind() == api.ModeExclusive })
	ones := slices.DeleteFunc(slices.Clone(grants), func(s *api.GrantSpec) bool { return s.Exclusive != 1 })
	if len(ones) == 0 {
		return nil
	}
	o := Offer{
		Name:     n.name(g),
		Type:     TypeGPU,
		GPU:      g.UUID,
		Withheld: n.withheld(g, func() string { return n.occupied(g) }),
		index:    g.Index,
		device:   n.device(g, TypeGPU),
	}
	o.device.Attributes["uuid"] = text(g.UUID)
	o.device.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": amount(g.Memory.Total)}
	for _, spec := range grants {
		o.Grants = append(o.Grants, spec.Name)
	}
	o.limitedBy(n, ones)
	o.named()
	return []Offer{o}
}

// occupied names a lease of no claim that has the GPU; empty: there is none.
func (n *Node) occupied(g *api.GPUStatus) string {
	if others := n.others(g); len(others) > 0 {
		return usedBy(others[0])
	}
	return ""
}
