package state

import (
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// OwnSlices are the slices as read back that a spec of ours asked for, and those that are wanted now. An administrator may
// have made others of such a name: they are shown and left alone. When nobody kept which are ours, all are taken to be.
func (x *State) OwnSlices(node *observe.Node, want []cgroup.Slice) (own, foreign []cgroup.SliceState) {
	st := x.Kept()
	wanted := map[cgroup.SliceName]bool{{}: true} // The one of all tenants is the package's.
	for _, s := range want {
		wanted[s.Name] = true
	}
	unknown := st.CreatedSlices == nil && (st.Accepted != nil || x.Lost)
	for _, s := range node.Slices {
		if unknown || wanted[s.Name] || st.CreatedSlices[s.Name.String()] {
			own = append(own, s)
		} else {
			foreign = append(foreign, s)
		}
	}
	return own, foreign
}

// NoteMade keeps which slices are ours: those that the spec asks for, and of those before it what is still there.
func (x *State) NoteMade(s *store.State, want *Desired, node *observe.Node) {
	own, _ := x.OwnSlices(node, nil)
	s.CreatedSlices = map[string]bool{}
	for _, st := range own {
		if st.Name.Tenant != "" {
			s.CreatedSlices[st.Name.String()] = true
		}
	}
	if want.Spec == nil {
		return
	}
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		s.CreatedSlices[cgroup.SliceName{Tenant: t.Name}.String()] = true
		for j := range t.Grants {
			s.CreatedSlices[cgroup.SliceName{Tenant: t.Name, Grant: t.Grants[j].Name}.String()] = true
		}
	}
}
