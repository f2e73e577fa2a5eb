package planner

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

func TestMPSWarnings(t *testing.T) {
	tenant := func(name string, m api.Members) api.TenantSpec {
		return api.TenantSpec{Name: name, Members: m, Grants: []api.GrantSpec{{Name: "a", MPS: &api.ShareSpec{Share: 10}}}}
	}
	alice, both := api.Members{Users: []string{"alice"}}, api.Members{Users: []string{"alice", "bob"}}
	program := func(r mps.Release) mps.Program {
		p := mps.Program{Release: r}
		p.Abilities, p.Unknown = r.Abilities()
		return p
	}
	old := program(mps.Release{Driver: "550.163.01", Branch: 550, Early: true})
	tests := []struct {
		name    string
		tenants []api.TenantSpec
		program mps.Program
		driver  string
		cuda    int
		want    string // empty: none
	}{
		{"one server for all users", []api.TenantSpec{tenant("red", both)}, program(mps.Release{CUDA: 13000}), "580.95.05", 13000, ""},
		{"one user", []api.TenantSpec{tenant("red", alice), tenant("blue", alice)}, old, "550.163.01", 12040, ""},
		{
			"two users of a tenant",
			[]api.TenantSpec{tenant("red", both)},
			old,
			"550.163.01",
			12040,
			"550.163.01 serves one user at a time: while a user has leases on GPU 0, those of other users of red wait",
		},
		{
			"a user of each tenant",
			[]api.TenantSpec{tenant("red", alice), tenant("blue", api.Members{Users: []string{"bob"}})},
			old,
			"550.163.01",
			12040,
			"red, blue wait",
		},
		{"a group", []api.TenantSpec{tenant("red", api.Members{Groups: []string{"lab"}})}, old, "550.163.01", 12040, "one user at a time"},
		{"no tenant", nil, old, "550.163.01", 12040, ""},
		{
			"of another driver",
			nil,
			old,
			"535.261.03",
			12020,
			"the MPS control program is 550.163.01 and the driver is 535.261.03 (CUDA 12.2): install the MPS package of the driver",
		},
		{
			"of another CUDA version",
			nil,
			program(mps.Release{CUDA: 13000}),
			"615.71.09",
			13040,
			"is of CUDA 13.0 and the driver is 615.71.09 (CUDA 13.4)",
		},
		{"not known", nil, program(mps.Release{CUDA: 14000}), "", 0, "the abilities of MPS control program of CUDA 14.0 are not known"},
		{"none", nil, mps.Program{Missing: "no such file"}, "580.95.05", 13000, "MPS cannot start: no such file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := &state.Desired{Spec: &api.Spec{Tenants: test.tenants}, GPUs: map[gpu.UUID]*api.GPUSpec{"GPU-a": {Mode: api.ModeMPS}}}
			node := &observe.Node{GPUs: []observe.GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-a"}}}}}
			node.Driver.DriverVersion, node.Driver.CUDAVersion = test.driver, test.cuda
			got := MPSWarnings(want, node, test.program)
			if test.want == "" && len(got) > 0 || test.want != "" && (len(got) != 1 || !strings.Contains(got[0], test.want)) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
