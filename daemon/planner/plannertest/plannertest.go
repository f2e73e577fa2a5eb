// Package plannertest has a node and its use for tests. Only tests import it.
package plannertest

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// OneGPU is the desired state and the view of a node with one time-sliced GPU, GPU-a with 8 GiB, which every grant of the
// tenants may use.
func OneGPU(generation uint64, tenants ...api.TenantSpec) (*state.Desired, lease.View) {
	want := &state.Desired{
		Generation: generation, Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}, Tenants: tenants},
		Grants: map[state.GrantKey][]gpu.UUID{}, GPUs: map[gpu.UUID]*api.GPUSpec{"GPU-a": {Mode: api.ModeTimeslice}},
	}
	view := lease.View{Generation: generation, GPUs: []lease.GPUView{{UUID: "GPU-a", Mode: api.ModeTimeslice, Capacity: 8 << 30}}}
	for i := range tenants {
		t := &tenants[i]
		for j := range t.Grants {
			want.Grants[state.GrantKey{Tenant: t.Name, Grant: t.Grants[j].Name}] = []gpu.UUID{"GPU-a"}
			view.Grants = append(view.Grants, lease.Grant{Tenant: t.Name, Spec: t.Grants[j]})
		}
	}
	return want, view
}

// NoUsage has no device user, and every instance is managed.
func NoUsage() planner.Usage {
	return planner.Usage{
		Instance: func(gpu.UUID, gpu.Placement) []string { return nil }, GPU: func(gpu.UUID) []string { return nil },
		Managed: func(gpu.UUID, *gpu.Instance) bool { return true }, Process: func(_ []*mps.State, pid int) planner.DeviceUser {
			return planner.DeviceUser{PID: pid, Start: 1, Name: "python"}
		},
	}
}
