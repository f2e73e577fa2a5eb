package publish

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
)

// Driver is the name of the driver, and the domain of its attributes.
const Driver = "gpushare.dev"

// KeyPrefix begins the keys of the leases of claims.
const KeyPrefix = "kubernetes:"

// Node is what gpushared says of a node.
type Node struct {
	Status *api.Status
	MIG    *api.MIGList
	Tenant *api.TenantSpec // whose grants are offered
	Host   map[string]Host // by UUID of a GPU
	// Freezes: the spec permits to freeze pods. Without that their shares of time are counted and not enforced.
	Freezes bool
	// Failing are the GPUs that are unreadable for so long that their pods should not wait any more; by UUID.
	Failing map[string]bool
	// Before are the slices that the API server had of this node when the program started, for GPUs that were not read since.
	Before []resourceapi.ResourceSlice
}

// Host is where a GPU is in the machine.
type Host struct {
	PCIeRoot string // empty: not known
	NUMANode *int   // nil: not known, or none
}

// The types of devices, as their attribute says.
const (
	TypeGPU       = "gpu"
	TypeMIG       = "mig"
	TypeTimeslice = "timeslice"
	TypeMPS       = "mps"
)

// Offer is a device that a claim may have.
type Offer struct {
	Name   string
	Type   string
	GPU    string   // its UUID
	Grants []string // each gives it, in the order of the spec
	Start  *uint32  // the memory slice at which the MIG instance begins
	// Withheld is why it is not published: nothing can be placed there, or not for Kubernetes. Empty: it is published.
	Withheld string

	index    int
	size     uint32 // of the MIG instance, in memory slices
	device   resourceapi.Device
	counters []counterUse // of the sets of its GPU and of the grants
	limits   map[string]int64
}

// Shared reports whether several claims may have parts of it.
func (o *Offer) Shared() bool { return o.Type == TypeTimeslice || o.Type == TypeMPS }

// Offers are all devices of the node, in the order in which the scheduler should try them.
func Offers(n *Node) []Offer {
	var out []Offer
	if n.Tenant == nil {
		return nil
	}
	for i := range n.Status.GPUs {
		g := &n.Status.GPUs[i]
		switch g.Mode {
		case api.ModeExclusive:
			out = append(out, n.whole(g)...)
		case api.ModeMIG:
			out = append(out, n.instances(g)...)
		case api.ModeTimeslice, api.ModeMPS:
			out = append(out, n.shares(g)...)
		}
	}
	return out
}

// lent is why the GPU is not for Kubernetes; empty: it is, as far as grants reach it.
func (n *Node) lent(g *api.GPUStatus) string {
	if n.Status.Node.Enforce != "on" {
		return "gpushare only observes the node: nothing that a claim has would be enforced"
	}
	if g.Owner != "" && g.Owner != "kubernetes" {
		return fmt.Sprintf("%s belongs to %s", Called(g), g.Owner)
	}
	return ""
}

// evicts reports whether a GPU gives nothing to those who have it: they should go where they can work.
func (n *Node) evicts(g *api.GPUStatus) bool {
	return lost[g.State] || g.State == "unreadable" && n.Failing[g.UUID]
}

// withheld is why a device of a GPU is not published: the GPU is not for Kubernetes, or something is in the way of claims. A lost GPU takes
// none anyway, and what is in the way there may be of before: it is published, because its taint moves away the pods that have it.
func (n *Node) withheld(g *api.GPUStatus, inTheWay func() string) string {
	if why := n.lent(g); why != "" || n.evicts(g) {
		return why
	}
	return inTheWay()
}

// grants are those of the tenant that may use a GPU, with what the status says of them.
func (n *Node) grants(g *api.GPUStatus, mine func(*api.GrantSpec) bool) []*api.GrantSpec {
	var out []*api.GrantSpec
	i := slices.IndexFunc(n.Status.Tenants, func(t api.TenantStatus) bool { return t.Name == n.Tenant.Name })
	if i < 0 {
		return nil
	}
	for j := range n.Tenant.Grants {
		spec := &n.Tenant.Grants[j]
		k := slices.IndexFunc(n.Status.Tenants[i].Grants, func(s api.GrantStatus) bool { return s.Name == spec.Name })
		if k >= 0 && slices.Contains(n.Status.Tenants[i].Grants[k].GPUs, g.UUID) && mine(spec) {
			out = append(out, spec)
		}
	}
	return out
}

// ofClaims reports whether a lease is of a claim.
func ofClaims(l *api.Lease) bool {
	if l.Engine == nil {
		return false
	}
	_, ok := ClaimOf(l.Engine.Key)
	return ok
}

// others are the leases on a GPU that are of no claim.
func (n *Node) others(g *api.GPUStatus) []*api.Lease {
	var out []*api.Lease
	for i := range n.Status.Leases {
		if l := &n.Status.Leases[i]; slices.Contains(l.GPUs, g.UUID) && !ofClaims(l) {
			out = append(out, l)
		}
	}
	return out
}

// usedBy names a lease that a device is not offered for.
func usedBy(l *api.Lease) string {
	if l.User == "" {
		return fmt.Sprintf("lease %s has it", l.ID)
	}
	return fmt.Sprintf("lease %s of %s has it", l.ID, l.User)
}

// Index is the number of its GPU.
func (o *Offer) Index() int { return o.index }

// Placement is where the MIG instance of the offer is, and Profile its profile.
func (o *Offer) Placement() api.MIGPlacement { return api.MIGPlacement{Start: *o.Start, Size: o.size} }

// Profile is the profile of the MIG instance of the offer.
func (o *Offer) Profile() string { return *o.device.Attributes["profile"].StringValue }
