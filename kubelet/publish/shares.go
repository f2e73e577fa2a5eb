package publish

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/gpushare/api"
)

const (
	// memoryStep is what amounts of GPU memory of claims are rounded up to.
	memoryStep = 1 << 20
	// usualShare is the share of a claim that names none, in percent: so that claims without one find place next to each other.
	usualShare = 10
)

// shares are the parts of a GPU that grants of time or of MPS have: one device for each, which claims divide.
func (n *Node) shares(g *api.GPUStatus) []Offer {
	var out []Offer
	for _, spec := range n.grants(g, func(s *api.GrantSpec) bool { return s.Kind() == g.Mode && s.Mode() == g.Mode }) {
		share := spec.Timeslice
		if g.Mode == api.ModeMPS {
			share = spec.MPS
		}
		o := Offer{
			Name:     n.name(g) + "-" + spec.Name,
			Type:     g.Mode,
			GPU:      g.UUID,
			Grants:   []string{spec.Name},
			Withheld: n.withheld(g, func() string { return n.full(g, spec, share) }),
			index:    g.Index,
			device:   n.device(g, g.Mode),
		}
		o.device.Attributes["parentUUID"], o.device.Attributes["grant"] = text(g.UUID), text(spec.Name)
		if g.Mode == api.ModeTimeslice {
			o.device.Attributes["freezePermitted"] = resourceapi.DeviceAttribute{BoolValue: &n.Freezes}
		}
		several := true
		o.device.AllowMultipleAllocations = &several
		o.device.Capacity = capacities(share, spec.MaxLeases)
		o.named()
		out = append(out, o)
	}
	return out
}

// capacities are what claims divide: each has its own amounts, which gpushared enforces, and all together have at most those of the
// grant.
func capacities(s *api.ShareSpec, leases *int) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	out := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	if percent := int64(s.Share); percent > 0 {
		out["share"] = divided(percent, min(usualShare, percent), 1, resource.DecimalSI)
	}
	if s.GPUMemory != nil && uint64(*s.GPUMemory) >= memoryStep {
		all := int64(*s.GPUMemory) / memoryStep * memoryStep
		out["memory"] = divided(all, all, memoryStep, resource.BinarySI)
	}
	if leases != nil {
		out["leases"] = divided(int64(max(*leases, 1)), 1, 1, resource.DecimalSI)
	}
	return out
}

// divided is a capacity of which each claim has a part: usual, if it names none.
func divided(all, usual, step int64, format resource.Format) resourceapi.DeviceCapacity {
	q := func(n int64) *resource.Quantity { return resource.NewQuantity(n, format) }
	policy := &resourceapi.CapacityRequestPolicy{
		Default:    q(usual),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: q(step), Max: q(all)},
	}
	if all > step {
		policy.ValidRange.Step = q(step) // Min and one step may not be more than there is.
	}
	return resourceapi.DeviceCapacity{Value: *q(all), RequestPolicy: policy}
}

// full is why no claim gets a part of a GPU for a grant: others use the grant, or its memory is theirs. Empty: claims may.
func (n *Node) full(g *api.GPUStatus, spec *api.GrantSpec, s *api.ShareSpec) string {
	for _, l := range n.others(g) {
		if l.Tenant == n.Tenant.Name && l.Grant == spec.Name {
			return usedBy(l) // What it leaves of the amounts is not its own, and changes with its use.
		}
	}
	if s.GPUMemory == nil || g.Grantable == 0 {
		return ""
	}
	taken := uint64(0)
	for _, m := range g.Granted {
		if m.Tenant != n.Tenant.Name || m.Grant != spec.Name {
			taken += m.Bytes
		}
	}
	if need := uint64(*s.GPUMemory); taken+need > g.Grantable {
		return fmt.Sprintf("other grants have %d MiB of its %d MiB now", taken>>20, g.Grantable>>20)
	}
	return ""
}
