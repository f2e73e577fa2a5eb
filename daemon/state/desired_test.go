package state

import (
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe/observetest"
)

func TestReserveIsOfSharedGPUs(t *testing.T) {
	reserve := api.Bytes(1 << 30)
	d := &Desired{
		Spec: &api.Spec{Node: api.NodeSpec{GPUMemoryReserve: &reserve}},
		GPUs: map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: api.ModeTimeslice}},
	}
	for mode, want := range map[string]uint64{api.ModeTimeslice: 1 << 30, api.ModeMPS: 1 << 30, api.ModeMIG: 0, api.ModeExclusive: 0, api.ModeExternal: 0} {
		d.GPUs[observetest.One].Mode = mode
		if got := d.GPUMemoryReserve(observetest.One); got != want {
			t.Errorf("in mode %s the reserve is %d bytes, want %d", mode, got, want)
		}
	}
	if got := (&Desired{}).GPUMemoryReserve(observetest.One); got != 0 {
		t.Errorf("without a spec the reserve is %d bytes", got)
	}
}
