package state

import (
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// ManagedSlices are the slices as read back that a spec of ours asked for, and those that are wanted now. An administrator may
// have made others of such a name: they are shown and left alone. When nobody kept which are ours, all are taken to be.
func (x *State) ManagedSlices(node *observe.Node, want []cgroup.Slice) (managed, foreign []cgroup.SliceState) {
	st := x.Stored()
	desired := map[cgroup.SliceName]bool{{}: true} // The one of all tenants is the package's.
	for _, s := range want {
		desired[s.Name] = true
	}
	unknown := st.CreatedSlices == nil && (st.Accepted != nil || x.Lost)
	for _, s := range node.Slices {
		if unknown || desired[s.Name] || st.CreatedSlices[s.Name.String()] {
			managed = append(managed, s)
		} else {
			foreign = append(foreign, s)
		}
	}
	return managed, foreign
}

// RecordSlices keeps which slices are ours: those that the spec asks for, and of those before it what is still there.
func (x *State) RecordSlices(s *store.State, want *Desired, node *observe.Node) {
	managed, _ := x.ManagedSlices(node, nil)
	s.CreatedSlices = map[string]bool{}
	for _, st := range managed {
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
