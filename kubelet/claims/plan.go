package claims

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// Plan is what a claim needs of gpushared: one lease, of the first of these grants that has place.
type Plan struct {
	Request api.EngineRequest // without key, grant and cgroup
	Grants  []string
	Results []resourceapi.DeviceRequestAllocationResult // of this driver, as they were allocated
}

// Name is a claim in messages, and in the lists of gpushared.
func Name(c *resourceapi.ResourceClaim) string { return c.Namespace + "/" + c.Name }

// PlanOf says what a claim needs. It refuses what no lease can be.
func PlanOf(n *publish.Node, pool string, c *resourceapi.ResourceClaim) (*Plan, error) {
	p := &Plan{}
	if c.Status.Allocation == nil {
		return nil, refuse(c, "it is not allocated")
	}
	for i := range c.Status.Allocation.Devices.Results {
		if r := &c.Status.Allocation.Devices.Results[i]; r.Driver == publish.Driver {
			if r.Pool != pool {
				return nil, refuse(c, "device %s is of pool %s, and this node is %s", r.Device, r.Pool, pool)
			}
			if r.AdminAccess != nil && *r.AdminAccess {
				return nil, refuse(c, "it has admin access, which gpushare does not give: gpushare status shows the node")
			}
			p.Results = append(p.Results, *r)
		}
	}
	if len(p.Results) == 0 {
		return p, nil
	}
	for i := range c.Status.Allocation.Devices.Config {
		if o := c.Status.Allocation.Devices.Config[i].Opaque; o != nil && o.Driver == publish.Driver {
			return nil, refuse(
				c,
				"it or its class has parameters for %s, which knows none: an amount is a capacity of its request",
				o.Driver,
			)
		}
	}
	if n.Tenant == nil {
		return nil, refuse(c, "the spec of the node has no tenant for Kubernetes")
	}
	offers := publish.Offers(n)
	var mine []*publish.Offer
	for i := range p.Results {
		j := slices.IndexFunc(offers, func(o publish.Offer) bool { return o.Name == p.Results[i].Device })
		if j < 0 {
			return nil, refuse(
				c,
				"device %s is not on this node any more: the spec or the GPU has changed since it was allocated",
				p.Results[i].Device,
			)
		}
		mine = append(mine, &offers[j])
	}
	p.Request = api.EngineRequest{Tenant: n.Tenant.Name, Account: c.Namespace, Name: Name(c)}
	for _, o := range mine {
		if !slices.Contains(p.Request.GPUs, o.GPU) {
			p.Request.GPUs = append(p.Request.GPUs, o.GPU)
		}
	}
	if len(mine) == 1 {
		return p, p.one(n, c, mine[0])
	}
	return p, p.several(n, c, mine)
}

// one is the lease of a single device. Of whole GPUs the grant must be of one: gpushared refuses one GPU for a grant of several.
func (p *Plan) one(n *publish.Node, c *resourceapi.ResourceClaim, o *publish.Offer) error {
	p.Grants = o.Grants
	if o.Type == publish.TypeGPU {
		p.Grants = slices.DeleteFunc(slices.Clone(o.Grants), func(name string) bool {
			i := slices.IndexFunc(n.Tenant.Grants, func(g api.GrantSpec) bool { return g.Name == name })
			return i < 0 || n.Tenant.Grants[i].Exclusive != 1
		})
	}
	if len(p.Grants) == 0 {
		return refuse(c, "it has one whole GPU (%s), and tenant %s has no grant with exclusive: 1 for it", o.Name, n.Tenant.Name)
	}
	if o.Start != nil {
		p.Request.Instance = fmt.Sprint(*o.Start)
	}
	if !o.Shared() {
		return nil
	}
	consumed := p.Results[0].ConsumedCapacity
	if q, ok := consumed["memory"]; ok && q.Value() > 0 {
		b := api.Bytes(q.Value())
		p.Request.GPUMemory = &b
	}
	if q, ok := consumed["share"]; ok && q.Value() > 0 {
		s := api.Percent(q.Value())
		p.Request.Share = &s
	}
	return nil
}

// several is the lease of more than one device: whole GPUs, and a grant that has as many.
func (p *Plan) several(n *publish.Node, c *resourceapi.ResourceClaim, mine []*publish.Offer) error {
	var names []string
	for _, o := range mine {
		names = append(names, o.Name)
		if o.Type != publish.TypeGPU {
			return refuse(
				c, "it has %s: a claim has whole GPUs, or one MIG instance, or one part of a GPU, because its processes are in one lease",
				strings.Join(append(names, "more"), " and "),
			)
		}
	}
	for i := range n.Tenant.Grants {
		spec := &n.Tenant.Grants[i]
		all := !slices.ContainsFunc(mine, func(o *publish.Offer) bool { return !slices.Contains(o.Grants, spec.Name) })
		if spec.Exclusive == len(mine) && all {
			p.Grants = append(p.Grants, spec.Name)
		}
	}
	if len(p.Grants) == 0 {
		return refuse(
			c, "it has %d whole GPUs (%s), and tenant %s has no grant with exclusive: %d for them", len(mine), strings.Join(names, ", "),
			n.Tenant.Name, len(mine),
		)
	}
	return nil
}

// refuse is why a claim is not prepared: the kubelet shows it as an event of the pod.
func refuse(c *resourceapi.ResourceClaim, format string, args ...any) error {
	return fmt.Errorf("cannot prepare claim %s: %s", Name(c), fmt.Sprintf(format, args...))
}
