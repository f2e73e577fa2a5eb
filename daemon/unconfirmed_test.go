package daemon

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/scenarios"
)

// What a call creates that did not answer in time is gpushare's, whenever it appears: it is used, or makes room for another
// layout, without an authority and without a command about foreign instances.
func TestACreationWhoseOutcomeWasNotKnown(t *testing.T) {
	enumeration.Long(t)
	answers := []struct {
		name string
		do   func(*virtual)
	}{
		{"a retry", func(w *virtual) {
			w.node.ClearFaults(0)
			awaitEffect(w)
			w.mustRetry(0)
		}},
		{"a retry while it hangs, and another", func(w *virtual) {
			if refusal := w.do(http.MethodPost, "/v1/gpus/0/retry", "", nil); refusal == nil {
				w.Error("a GPU that hangs is changed")
			}
			w.node.ClearFaults(0)
			awaitEffect(w)
			w.mustRetry(0)
		}},
		{"a start of the daemon and a retry", func(w *virtual) {
			w.end()
			w.node.ClearFaults(0)
			awaitEffect(w)
			w.startDaemon()
			w.waitIdle(nil)
			w.mustRetry(0)
		}},
		{"SIGKILL and a retry", func(w *virtual) {
			w.kill()
			w.node.ClearFaults(0)
			awaitEffect(w)
			w.startDaemon()
			w.waitIdle(nil)
			w.mustRetry(0)
		}},
	}
	for _, call := range []string{"DeviceCreateGpuInstance*", "GpuInstanceCreateComputeInstance*"} {
		for _, after := range []bool{false, true} {
			for _, answer := range answers {
				for _, next := range []struct {
					name string
					want []string
				}{{"1g.5gb, 3g.20gb", []string{"1g.5gb", "3g.20gb"}}, {"1g.5gb", []string{"1g.5gb"}}, {"7g.40gb", []string{"7g.40gb"}}} {
					t.Run(fmt.Sprintf("%s/%v/%s/%s", call, after, answer.name, next.name), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true})
							w.startDaemon()
							w.mustApply(specOf("mode: mig, mig: {layout: [1g.5gb]}"))
							addFault(t, w, gpusim.Fault{Call: call, Do: gpusim.FaultHang, After: after})
							if _, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [1g.5gb, 3g.20gb]}"), ""); refusal != nil ||
								op.State != "degraded" {
								t.Fatalf("a change that hangs: %v, %+v", refusal, op)
							}
							if _, _, refusal := w.apply(specOf("mode: mig, mig: {layout: ["+next.name+"]}"), ""); refusal != nil {
								t.Fatalf("the next spec: %v", refusal)
							}
							answer.do(w)
							w.waitIdle(nil)
							if names := w.namesOf(0); !slices.Equal(names, next.want) {
								t.Errorf("the GPU has %q", names)
							}
							s := w.statusNow()
							if g := &s.GPUs[0]; g.State != "ok" || len(s.Node.Conditions) != 0 ||
								slices.ContainsFunc(g.MIG.Instances, func(in api.InstanceStatus) bool { return in.Foreign }) {
								t.Errorf("the GPU is %s, %+v, %+v", g.State, g.MIG.Instances, s.Node.Conditions)
							}
							if n := len(w.state.Stored().Unconfirmed); n != 0 {
								t.Errorf("%d outcomes are not confirmed", n)
							}
						})
					})
				}
			}
		}
	}
}

// awaitEffect lets what waited for a fault end.
func awaitEffect(w *virtual) {
	w.Helper()
	time.Sleep(time.Second) // In the virtual time of the bubble.
	synctest.Wait()
}

// mustRetry tries a GPU again, which must succeed.
func (w *virtual) mustRetry(i int) {
	w.Helper()
	var op api.Operation
	if refusal := w.do(http.MethodPost, fmt.Sprintf("/v1/gpus/%d/retry", i), "", &op); refusal != nil {
		w.Fatal(refusal)
	}
	if done := w.waitIdle(&op); done.State != "done" {
		w.Fatalf("the retry ended %s: %+v", done.State, done.Error)
	}
}

// What is left of a change whose steps could not be undone is gpushare's.
func TestWhatAnUndoLeavesIsManaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true})
		w.startDaemon()
		addFault(t, w, gpusim.Fault{Call: "DeviceCreateGpuInstance*", Nth: 2, Do: gpusim.FaultFail})
		addFault(t, w, gpusim.Fault{Call: "GpuInstanceDestroy", Do: gpusim.FaultFail, Times: -1})
		if _, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [3g.20gb, 2g.10gb]}"), ""); refusal != nil || op.State != "degraded" {
			t.Fatalf("a change that fails: %v, %+v", refusal, op)
		}
		if names := w.namesOf(0); len(names) == 0 {
			t.Fatal("nothing is left: the test shows nothing")
		}
		w.node.ClearFaults(0)
		w.mustApply(specOf("mode: mig, mig: {layout: [1g.5gb]}"))
		if names := w.namesOf(0); !slices.Equal(names, []string{"1g.5gb"}) {
			t.Errorf("the GPU has %q", names)
		}
	})
}
