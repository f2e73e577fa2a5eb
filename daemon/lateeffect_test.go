package daemon

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/scenarios"
)

// A change of a GPU whose worker crashed is in the kernel: it may come when the GPU already reads as before. What is undone is as before
// also then, or the GPU is held with the reason.
func TestAnUndoneModeRemainsUndoneWhenTheCallHasItsEffectLater(t *testing.T) {
	for _, c := range []struct {
		name  string
		board scenarios.Board
		spec  string
		call  string
	}{
		{"MIG on", scenarios.Board{Model: "h100-80"}, "mode: mig, mig: {dynamic: true}", "DeviceSetMigMode"},
		{"MIG on, in use by another program", scenarios.Board{Model: "a100-40"}, "mode: mig, mig: {dynamic: true}", "DeviceSetMigMode"},
		{"MIG off", scenarios.Board{Model: "h100-80", MIG: true}, "mode: exclusive", "DeviceSetMigMode"},
		{"MIG off, in use by another program", scenarios.Board{Model: "a100-40", MIG: true}, "mode: exclusive", "DeviceSetMigMode"},
		{"compute mode", scenarios.Board{Model: "h100-80"}, "mode: timeslice", "DeviceSetComputeMode"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newVirtual(t, nil, c.board)
				w.startDaemon()
				other := w.node.Driver(77) // It has the GPU open, so that a mode which needs a reset becomes pending.
				if c.call == "DeviceSetComputeMode" {
					must(t, other.SetComputeMode(t.Context(), w.ids[0], gpu.ComputeExclusiveProcess))
				} else if _, err := other.Snapshot(t.Context(), w.ids[0]); err != nil {
					t.Fatal(err)
				}
				was := w.truth()[0]
				addFault(t, w, gpusim.Fault{Call: c.call, Do: gpusim.FaultHang, ReadsAnswer: true})
				var res api.ApplyResult
				if refusal := w.do(http.MethodPut, "/v1/spec?allow-reset=1", specOf(c.spec), &res); refusal != nil {
					t.Fatal(refusal)
				}
				for range 2 { // The step, and its repetition.
					synctest.Wait()
					w.fakeWorker.crash()
				}
				synctest.Wait()
				w.node.ClearFaults(0)
				op := w.waitIdle(res.Operation)
				now := w.truth()[0]
				if now.MIG.Current != was.MIG.Current || now.MIG.Pending != was.MIG.Pending || now.ComputeMode != was.ComputeMode {
					t.Errorf("it ended %s, %+v, and the GPU has %+v, %s", op.State, op.Error, now.MIG, now.ComputeMode)
				}
				if s := w.statusNow().GPUs[0]; s.State != "held" {
					t.Errorf("the GPU is %s", s.State)
				}
			})
		})
	}
}
