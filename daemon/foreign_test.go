package daemon

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/scenarios"
)

// halfAt is the new instance 3g.20gb of an A100 at a memory slice.
func halfAt(start uint32) gpu.NewInstance {
	return gpu.NewInstance{ProfileID: 9, Placement: gpu.Placement{Start: start, Size: 4}}
}

// createAs creates an instance as another program does.
func (w *virtual) createAs(i int, in gpu.NewInstance) {
	w.Helper()
	d := w.node.Driver(77)
	if _, err := d.CreateInstance(w.Context(), w.ids[i], in); err != nil {
		w.Fatal(err)
	}
	must(w.T, d.Close())
}

// What a change never began to create, and what did not come to a GPU that left the spec, is not gpushare's when another program
// creates it.
func TestWhatGpushareNeverCreatedIsForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}, scenarios.Board{Model: "a100-40", MIG: true})
		w.startDaemon()
		w.mustApply(entries("mode: mig, mig: {layout: [1g.5gb]}"))
		addFault(t, w, gpusim.Fault{Call: "DeviceCreateGpuInstance*", GPU: "1", Do: gpusim.FaultFail, Code: gpusim.Timeout, Times: -1})
		if _, op, refusal := w.apply(entries("mode: mig, mig: {layout: [1g.5gb, 3g.20gb, 2g.10gb]}"), ""); refusal != nil ||
			op.State != "degraded" {
			t.Fatalf("a change that does not answer: %v, %+v", refusal, op)
		}
		if u := w.state.Stored().Unconfirmed[w.ids[1]]; len(u.Created) != 1 || u.Created[0].ProfileID != 9 {
			t.Fatalf("may have been created: %+v", u.Created)
		}
		at := w.state.Stored().Unconfirmed[w.ids[1]].Created[0].Placement.Start
		w.node.ClearFaults(0)
		w.mustApply(entries(""))
		w.waitAnother()
		w.createAs(1, halfAt(at))
		w.waitAnother()
		_, op, refusal := w.apply(entries("mode: mig, mig: {layout: [7g.40gb]}"), "")
		if refusal == nil || !strings.Contains(refusal.Message, "not managed by gpushare") {
			t.Fatalf("what is not gpushare's is destroyed: %v, %+v", refusal, op)
		}
	})
}

// A boot ends what gpushare created: what another program created at the same place before the daemon started is not gpushare's, also
// while no change restored the GPU yet.
func TestWhatGpushareCreatedEndsWithABoot(t *testing.T) {
	const half, whole = "mode: mig, mig: {layout: [3g.20gb]}", "mode: mig, mig: {layout: [7g.40gb]}"
	for _, c := range []struct {
		name string
		do   func(w *virtual, boot func()) *api.Error
	}{
		{"the file has another layout", func(w *virtual, boot func()) *api.Error {
			boot()
			for _, c := range w.statusNow().Node.Conditions {
				if c.Kind == "spec-file" {
					return &api.Error{Message: c.Message}
				}
			}
			return nil
		}},
		{"a held GPU", func(w *virtual, boot func()) *api.Error {
			addFault(w.T, w, gpusim.Fault{Call: "DeviceCreateGpuInstance*", Do: gpusim.FaultFail, Times: -1})
			if _, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [3g.20gb, 1g.5gb]}"), ""); refusal != nil || op.State != "degraded" {
				w.Fatalf("a change that fails: %v, %+v", refusal, op)
			}
			w.node.ClearFaults(0)
			boot()
			var res api.ApplyResult
			refusal := w.do(http.MethodPost, "/v1/mig/import", `{"gpu": "0", "start": [0, 4]}`, &res)
			if refusal == nil || !strings.Contains(refusal.Message, "since the host was booted") {
				w.Errorf("an import is answered with %v, %+v", refusal, res)
			}
			_, _, refusal = w.apply(specOf(whole), "")
			return refusal
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "node.yaml")
			synctest.Test(t, func(t *testing.T) {
				w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true})
				w.startDaemon()
				w.mustApply(specOf(half))
				was := w.truth()[0].Instances[0]
				must(t, os.WriteFile(file, []byte(specOf(whole)), 0o600))
				refusal := c.do(w, func() {
					w.end()
					w.node.Reboot()
					w.writeHost()
					w.port.mu.Lock()
					clear(w.port.all)
					w.port.mu.Unlock()
					w.createAs(0, halfAt(was.Placement.Start))
					if strings.Contains(c.name, "file") {
						w.specFile = file
					}
					w.startDaemon()
					w.waitIdle(nil)
				})
				if names := w.namesOf(0); !slices.Equal(names, []string{"3g.20gb"}) {
					t.Errorf("the GPU has %q", names)
				}
				if refusal == nil || !strings.Contains(refusal.Message, "not managed by gpushare") {
					t.Errorf("it is answered with %v", refusal)
				}
			})
		})
	}
}

// The removal of an instance that is not gpushare's needs no record of the GPU, which never was as a spec says.
func TestWhatGpushareDoesNotManageIsRemovedWithoutARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true})
		w.createAs(0, halfAt(0))
		w.startDaemon()
		addFault(t, w, gpusim.Fault{Call: "DeviceCreateGpuInstance*", Do: gpusim.FaultFail, Times: -1})
		if _, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [1g.5gb]}"), ""); refusal != nil || op.State != "degraded" {
			t.Fatalf("a change that fails: %v, %+v", refusal, op)
		}
		w.end() // What is read from the disk has no empty map.
		w.node.ClearFaults(0)
		w.startDaemon()
		w.waitIdle(nil)
		if n := len(w.state.Stored().Achieved); n != 0 {
			t.Fatalf("%d GPUs were as the spec says: the test shows nothing", n)
		}
		var res api.ApplyResult
		if refusal := w.do(http.MethodPost, "/v1/mig/remove", `{"gpu": "0", "start": [0]}`, &res); refusal != nil {
			t.Fatal(refusal)
		}
		if op := w.waitIdle(res.Operation); op == nil || op.State != "done" {
			t.Errorf("it ends %+v", op)
		}
		if names := w.namesOf(0); len(names) != 0 {
			t.Errorf("the GPU has %q", names)
		}
		if a := w.state.Stored().Achieved; len(a) != 0 {
			t.Errorf("the record has %+v", a)
		}
	})
}
