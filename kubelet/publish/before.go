package publish

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/gpushare/api"
)

// Unread reports whether the instances of a GPU were not read since this program started, as of one that is lost.
func (n *Node) Unread(g *api.GPUStatus) bool {
	read := g.MIG != nil && slices.ContainsFunc(n.MIG.GPUs, func(d api.MIGDevice) bool { return d.UUID == g.UUID })
	return g.Mode == api.ModeMIG && !read
}

// kept are the devices of GPUs whose instances were not read, as they were published before, with the taints of now, and the sets of
// counters that they use. Without them a restart of this program would withdraw the devices of a lost GPU, and with them what moves its
// pods away.
func (n *Node) kept() (devices []resourceapi.Device, sets []resourceapi.CounterSet) {
	used := map[string]bool{}
	for i := range n.Status.GPUs {
		g := &n.Status.GPUs[i]
		mine := func(s *api.GrantSpec) bool { return s.Kind() == api.ModeMIG }
		if n.Tenant == nil || !n.Unread(g) || n.lent(g) != "" || len(n.grants(g, mine)) == 0 {
			continue
		}
		for _, s := range n.Before {
			for _, d := range s.Spec.Devices {
				if textOf(&d, "parentUUID") != g.UUID || textOf(&d, "type") != TypeMIG {
					continue
				}
				d.Taints = n.taints(g, nil)
				devices = append(devices, d)
				for _, c := range d.ConsumesCounters {
					used[c.CounterSet] = true
				}
			}
		}
	}
	for _, s := range n.Before {
		for _, c := range s.Spec.SharedCounters {
			if used[c.Name] {
				sets = append(sets, c)
			}
		}
	}
	return devices, sets
}

// textOf is an attribute of a device; empty: it has none.
func textOf(d *resourceapi.Device, name resourceapi.QualifiedName) string {
	if s := d.Attributes[name].StringValue; s != nil {
		return *s
	}
	return ""
}
