package isolation

import (
	"slices"
	"testing"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
)

// What slices allow on a GPU that was never read is kept, and what they allow on other GPUs is as desired.
func TestKeepUnread(t *testing.T) {
	h := &Hardware{
		Host: Host{
			Majors: map[string]uint32{"nvidia-uvm": 500, "nvidia-caps": 510},
			Caps:   Caps{"gpu0/gi1/access": 21, "gpu1/gi1/access": 156, "gpu10/gi1/access": 400, "mig/config": 1},
		},
		GPUs: []gpu.Snapshot{
			{Identity: gpu.Identity{UUID: "a", Minor: 0}},
			{Identity: gpu.Identity{UUID: "b", Minor: -1}},
			{Identity: gpu.Identity{UUID: "c", Minor: 10}},
		},
	}
	ctl, uvm, a, b, c := node(gpuMajor, 255, "rw", ""), node(500, 0, "rw", ""), node(gpuMajor, 0, "rw", ""), node(
		gpuMajor, 1, "rw", "",
	), node(gpuMajor, 10, "rw", "")
	all := []cgroup.DeviceRule{ctl, uvm, a, b, c, capability(510, 21), capability(510, 156), capability(510, 400)}
	for _, tt := range []struct {
		name              string
		desired, observed []cgroup.DeviceRule
		keeps             bool
		want              []cgroup.DeviceRule
	}{
		{"nothing was allowed", []cgroup.DeviceRule{ctl, uvm, a}, nil, true, []cgroup.DeviceRule{ctl, uvm, a}},
		{"only others were allowed", nil, []cgroup.DeviceRule{ctl, uvm, a, c, capability(510, 21), capability(510, 400)}, true, nil},
		{"it was allowed", nil, all, true, []cgroup.DeviceRule{ctl, uvm, b, capability(510, 156)}},
		{"it was allowed, with others", []cgroup.DeviceRule{ctl, uvm, a}, all, true, []cgroup.DeviceRule{ctl, uvm, a, b, capability(510, 156)}},
		{"the grant may use it no longer", []cgroup.DeviceRule{ctl, uvm, a}, all, false, []cgroup.DeviceRule{ctl, uvm, a}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			desired := []cgroup.Slice{
				{Name: cgroup.SliceName{Tenant: "red"}, Devices: cgroup.SortRules(slices.Clone(tt.desired))},
				{Name: cgroup.SliceName{Tenant: "new"}},
			}
			observed := []cgroup.SliceState{
				{Name: cgroup.SliceName{Tenant: "red"}, Devices: tt.observed, Limits: cgroup.Limits{CPUs: "0-3"}},
			}
			KeepUnread(h, desired, observed, map[gpu.UUID]bool{"b": true}, func(cgroup.SliceName) bool { return tt.keeps })
			if got := desired[0].Devices; !slices.Equal(got, cgroup.SortRules(slices.Clone(tt.want))) {
				t.Errorf("it allows %v, want %v", got, tt.want)
			}
			if desired[1].Devices != nil {
				t.Errorf("a new slice allows %v", desired[1].Devices)
			}
		})
	}
}
