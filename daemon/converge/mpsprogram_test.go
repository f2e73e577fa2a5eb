package converge

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

func TestMPSProgramConditions(t *testing.T) {
	want := &state.Desired{
		Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}},
		GPUs: map[gpu.UUID]*api.GPUSpec{"GPU-a": {Mode: api.ModeMPS}},
	}
	tests := []struct {
		name    string
		program mps.Release
		kind    string // empty: none
		want    string
	}{
		{"the driver's", mps.Release{Driver: "580.95.05", Branch: 580, CUDA: 13000}, "", ""},
		{"of the driver's CUDA version", mps.Release{CUDA: 13000}, "", ""},
		{
			"of another driver",
			mps.Release{Driver: "550.163.01", Branch: 550, Early: true},
			"differs",
			"the MPS control program is 550.163.01 and the driver is 580.95.05 (CUDA 13.0)",
		},
		{"not known", mps.Release{Driver: "999.10", Branch: 999}, "unknown", "the abilities of MPS control program 999.10 are not known"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := observe.GPU{MPS: &mps.State{Phase: mps.Running, Program: test.program, Version: test.program.Text()}}
			g.Identity.UUID = "GPU-a"
			node := &observe.Node{GPUs: []observe.GPU{g}, Driver: gpu.NodeInfo{DriverVersion: "580.95.05", CUDAVersion: 13000}}
			got := mpsProgramConditions(want, node)
			if c, ok := got[test.kind]; test.kind == "" && len(got) > 0 ||
				test.kind != "" && (!ok || !strings.Contains(c.Message, test.want)) {
				t.Errorf("got %+v, want %s: %s", got, test.kind, test.want)
			}
		})
	}
}
