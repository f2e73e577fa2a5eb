package planner

import (
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mps"
)

func TestMPSSettings(t *testing.T) {
	const gib = 1 << 30
	share := func(percent float64, memory uint64) *api.ShareSpec {
		s := &api.ShareSpec{Share: api.Percent(percent)}
		if memory > 0 {
			s.GPUMemory = new(api.Bytes(memory))
		}
		return s
	}
	tests := []struct {
		name   string
		grants []*api.ShareSpec // of MPS
		other  *api.ShareSpec   // of a grant that has no place on the GPU
		want   mps.Settings
	}{
		{"no grant", nil, share(50, gib), mps.Settings{}},
		{"one", []*api.ShareSpec{share(33.33, 8*gib)}, nil, mps.Settings{Threads: 33.33, Memory: 8 * gib}},
		{
			"the largest of each",
			[]*api.ShareSpec{share(25, 16*gib), share(50, 4*gib)},
			share(80, 32*gib),
			mps.Settings{Threads: 50, Memory: 16 * gib},
		},
		{"one without a memory limit", []*api.ShareSpec{share(25, 16*gib), share(10, 0)}, nil, mps.Settings{Threads: 25}},
		{"all threads", []*api.ShareSpec{share(100, gib)}, nil, mps.Settings{Memory: gib}},
		{"no whole MiB", []*api.ShareSpec{share(10, 3<<19)}, nil, mps.Settings{Threads: 10, Memory: 2 << 20}},
		{"as much as the GPU has", []*api.ShareSpec{share(10, 40*gib)}, nil, mps.Settings{Threads: 10}},
		{"more than any number of MiB", []*api.ShareSpec{share(10, 1<<64-1)}, nil, mps.Settings{Threads: 10}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			id := gpu.Identity{UUID: "GPU-1", Memory: 40 * gib}
			want := &state.Desired{Spec: &api.Spec{}, Grants: map[state.GrantKey][]gpu.UUID{}}
			add := func(name string, s *api.ShareSpec, on gpu.UUID) {
				want.Spec.Tenants = append(want.Spec.Tenants, api.TenantSpec{Name: name, Grants: []api.GrantSpec{
					{Name: "g", MPS: s}, {Name: "slow", Timeslice: share(90, 39*gib)},
				}})
				want.Grants[state.GrantKey{Tenant: name, Grant: "g"}] = []gpu.UUID{"GPU-0", on}
				want.Grants[state.GrantKey{Tenant: name, Grant: "slow"}] = []gpu.UUID{"GPU-0", on}
			}
			for i, s := range test.grants {
				add(string(rune('a'+i)), s, id.UUID)
			}
			if test.other != nil {
				add("other", test.other, "GPU-2")
			}
			test.want.GPU = id.UUID
			if got := mpsSettings(want, id, &api.GPUSpec{Mode: api.ModeMPS}); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
