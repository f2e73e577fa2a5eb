package publish

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
)

// Absent is a GPU of which there is no device, and why.
type Absent struct {
	Index int
	UUID  string
	Why   string
}

// Without are the GPUs of which the offers have no device.
func Without(n *Node, offers []Offer) []Absent {
	var out []Absent
	for i := range n.Status.GPUs {
		g := &n.Status.GPUs[i]
		if !slices.ContainsFunc(offers, func(o Offer) bool { return o.GPU == g.UUID }) {
			out = append(out, Absent{Index: g.Index, UUID: g.UUID, Why: n.absent(g)})
		}
	}
	return out
}

// absent is why a GPU gives no device.
func (n *Node) absent(g *api.GPUStatus) string {
	if n.Tenant == nil {
		return "the spec has no tenant for Kubernetes"
	}
	if why := n.lent(g); why != "" {
		return why
	}
	of := func(kind string) int {
		return len(n.grants(g, func(s *api.GrantSpec) bool { return s.Kind() == kind }))
	}
	switch g.Mode {
	case api.ModeUnmanaged:
		return "the spec does not name it"
	case api.ModeExternal:
		return "its mode is external: gpushare leaves it to another program"
	case api.ModeExclusive:
		if of(api.ModeExclusive) > 0 {
			return fmt.Sprintf(
				"no grant of tenant %s for it has exclusive: 1, without which the scheduler cannot give it alone",
				n.Tenant.Name,
			)
		}
	case api.ModeMIG:
		switch {
		case of(api.ModeMIG) == 0:
		case g.MIG == nil || !slices.ContainsFunc(n.MIG.GPUs, func(d api.MIGDevice) bool { return d.UUID == g.UUID }):
			return "its instances are not known: it does not answer"
		case g.MIG.Dynamic:
			return fmt.Sprintf(
				"each grant of tenant %s for it may be of several profiles, or of none: one that names a profile is offered",
				n.Tenant.Name,
			)
		default:
			return fmt.Sprintf("no whole instance of its layout is of a profile that tenant %s has a grant for", n.Tenant.Name)
		}
	}
	return fmt.Sprintf("tenant %s has no grant for it with its mode, which is %s", n.Tenant.Name, g.Mode)
}
