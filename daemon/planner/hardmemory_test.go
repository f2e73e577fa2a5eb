package planner

import (
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/store/storetest"
)

// Each update of the lease table knows which limits can be hard: one by a change would let in a lease that accepts only a hard limit.
func TestViewHasWhichLimitsCanBeHard(t *testing.T) {
	st := storetest.Open(t)
	s := state.NewState(st, false)
	s.SetDesired(&state.Desired{
		Spec: &api.Spec{Node: api.NodeSpec{Enforce: "on"}},
		GPUs: map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: api.ModeTimeslice}},
	})
	s.SetHardMemory(map[gpu.UUID]state.HardMemory{observetest.One: {Missing: "the driver has no limits", ByLease: true}})
	v := View(s, &observe.Node{GPUs: []observe.GPU{observetest.Device(false)}}, time.Now())
	if len(v.GPUs) != 1 || v.GPUs[0].NoHardMemory != "the driver has no limits" || !v.GPUs[0].HardByLease {
		t.Errorf("the view has %+v", v.GPUs)
	}
}
