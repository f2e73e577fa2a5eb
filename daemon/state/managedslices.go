package state

import (
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// ManagedSlices divides the observed slices: managed are those that a spec had or that are desired now. An administrator may
// have created others with such a name: they are reported and not changed. Without a record all are managed.
func (x *State) ManagedSlices(node *observe.Node, want []cgroup.Slice) (managed, foreign []cgroup.SliceState) {
	st := x.Stored()
	desired := map[cgroup.SliceName]bool{{}: true} // The slice of all tenants is part of the package.
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

// RecordSlices records the managed slices: those of the spec, those that leases need under former names, and existing ones of
// previous specs.
func (x *State) RecordSlices(s *store.State, want *Desired, node *observe.Node, live []lease.Lease) {
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
	for _, f := range FormerSlices(want, live) {
		s.CreatedSlices[f.Name.String()] = true
	}
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		s.CreatedSlices[cgroup.SliceName{Tenant: t.Name}.String()] = true
		for j := range t.Grants {
			s.CreatedSlices[cgroup.SliceName{Tenant: t.Name, Grant: t.Grants[j].Name}.String()] = true
		}
	}
}
