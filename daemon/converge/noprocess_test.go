package converge

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
)

// What new leases get of a GPU with memory in no process is what its mode gives them.
func TestWhatNewLeasesGetNextToMemoryInNoProcess(t *testing.T) {
	for mode, want := range map[string]string{
		api.ModeExclusive: "New leases do not get the GPU until it is free",
		api.ModeTimeslice: "New leases get what is left",
	} {
		t.Run(mode, func(t *testing.T) {
			w := newFixture(t, sharedSpec)
			w.State.SetDesired(&state.Desired{Spec: &api.Spec{}, GPUs: map[gpu.UUID]*api.GPUSpec{observetest.One: {Mode: mode}}})
			used := observetest.With(
				observetest.Device(false), func(g *observe.GPU) { g.Memory = gpu.Memory{Total: 40 << 30, Used: 34 << 30} },
			)
			for seq := range uint64(2) { // What counts is in two observations.
				w.State.SetInNoProcess(w.NoProcess.observe(&observe.Node{Seq: seq + 1, GPUs: []observe.GPU{used}}))
			}
			w.updateNoProcess(&observe.Node{Seq: 2, GPUs: []observe.GPU{used}})
			if got := w.messages("memory-in-no-process"); len(got) != 1 || !strings.HasSuffix(got[0], want) {
				t.Errorf("the conditions are %q, want one with %q", got, want)
			}
		})
	}
}
