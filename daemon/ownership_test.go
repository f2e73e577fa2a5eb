package daemon

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/scenarios"
)

// entries is a spec of GPU 0 and, unless it is empty, an entry of GPU 1.
func entries(second string) string {
	s := "version: v1\nnode: {enforce: on, isolation: {logins: open}}\ngpus:\n  - {select: {index: 0}, mode: mig, mig: {layout: [3g.20gb]}}\n"
	if second != "" {
		s += "  - {select: {index: 1}, " + second + "}\n"
	}
	return s
}

// What gpushare created on a GPU is managed by it until it is removed or handed over, whatever the spec in force says of the GPU. What
// another program created in its place is not.
func TestWhatGpushareCreatedRemainsManaged(t *testing.T) {
	const quarters = "mode: mig, mig: {layout: [1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]}"
	const whole = "mode: mig, mig: {layout: [7g.40gb]}"
	left := func(w *virtual) { w.mustApply(entries("")) }
	others := func(w *virtual) { // Another program removes all of them and creates one like the first.
		w.Helper()
		d := w.node.Driver(77)
		for _, in := range w.truth()[1].Instances {
			if err := d.DestroyInstance(w.Context(), w.ids[1], in.ID); err != nil {
				w.Fatal(err)
			}
		}
		w.waitAnother()
		if _, err := d.CreateInstance(
			w.Context(), w.ids[1], gpu.NewInstance{ProfileID: profile1g, Placement: gpu.Placement{Start: 0, Size: 1}},
		); err != nil {
			w.Fatal(err)
		}
		w.waitAnother()
	}
	for _, c := range []struct {
		name   string
		do     func(*virtual)
		theirs bool // the next layout is refused because of an instance that gpushare does not manage
	}{
		{name: "the entry left", do: left},
		{name: "the entry left, and the daemon was started again", do: func(w *virtual) { left(w); w.end(); w.startDaemon(); w.waitIdle(nil) }},
		{name: "the entry left, and other specs were applied", do: func(w *virtual) {
			left(w)
			w.mustApply(strings.Replace(entries(""), "3g.20gb", "2g.10gb", 1))
			w.mustApply(entries(""))
		}},
		{name: "the GPU did not answer when the entry left", do: func(w *virtual) {
			if _, err := w.node.AddFault(gpusim.Fault{Call: "DeviceGetMemoryInfo", GPU: "1", Do: gpusim.FaultHang, Times: -1}); err != nil {
				w.Fatal(err)
			}
			w.waitAnother()
			left(w)
			w.node.ClearFaults(0)
			w.mustRetry(1)
		}},
		{name: "the entry left, and another program created the same", do: func(w *virtual) { left(w); others(w) }, theirs: true},
		{name: "handed over", do: func(w *virtual) { w.mustApply(entries("mode: external, owner: slurm")) }, theirs: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}, scenarios.Board{Model: "a100-40", MIG: true})
				w.startDaemon()
				w.mustApply(entries("mode: mig, mig: {layout: [3g.20gb]}"))
				w.mustApply(entries(quarters))
				c.do(w)
				_, op, refusal := w.apply(entries(whole), "")
				if c.theirs {
					if refusal == nil || !strings.Contains(refusal.Message, "not managed by gpushare") {
						t.Fatalf("what is not gpushare's is destroyed: %v, %+v", refusal, op)
					}
					return
				}
				if refusal != nil || op == nil || op.State != "done" {
					t.Fatalf("the next layout: %v, %+v", refusal, op)
				}
				if names := w.namesOf(1); !slices.Equal(names, []string{"7g.40gb"}) {
					t.Errorf("the GPU has %q", names)
				}
			})
		})
	}
}

// Unmanaging all restores a GPU whose entry left the spec before: its instances, its MIG mode, its compute mode and its power limit.
func TestUnmanageOfWhatLeftTheSpec(t *testing.T) {
	for _, c := range []struct {
		name, entry string
		board       scenarios.Board
	}{
		{"MIG", "mode: mig, mig: {layout: [3g.40gb, 1g.10gb]}", scenarios.Board{Model: "h100-80"}},
		{"MIG that was on", "mode: exclusive", scenarios.Board{Model: "h100-80", MIG: true}},
		{"instances on demand", "mode: mig, mig: {dynamic: true}", scenarios.Board{Model: "h100-80"}},
		{"a compute mode", "mode: timeslice", scenarios.Board{Model: "h100-80"}},
		{"a power limit", "mode: exclusive, health: {power_cap: 500W}", scenarios.Board{Model: "h100-80"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}, c.board)
				w.startDaemon()
				if err := w.node.Driver(77).SetComputeMode(t.Context(), w.ids[1], gpu.ComputeExclusiveProcess); err != nil {
					t.Fatal(err)
				}
				was, limits := w.inventoryOf(1), w.limitsNow()
				w.mustApply(entries(c.entry))
				if w.inventoryOf(1) == was && w.limitsNow() == limits {
					t.Fatal("the spec changes nothing: the test shows nothing")
				}
				w.mustApply(entries(""))
				var res api.ApplyResult
				if refusal := w.do(http.MethodPost, "/v1/unmanage?all=1&force=1", "", &res); refusal != nil {
					t.Fatal(refusal)
				}
				w.waitIdle(res.Operation)
				if now := w.inventoryOf(1); now != was {
					t.Errorf("the GPU is %s, and was %s; warnings: %q", now, was, res.Plan.Warnings)
				}
				if now := w.limitsNow(); now != limits {
					t.Errorf("the limits are %s, and were %s", now, limits)
				}
				if st := w.state.Stored(); len(st.Achieved)+len(st.OriginalModes)+len(st.Unconfirmed) != 0 {
					t.Errorf("the records have %+v, %+v, %+v", st.Achieved, st.OriginalModes, st.Unconfirmed)
				}
			})
		})
	}
}

// A MIG mode from before that needs a reset is not restored by unmanaging all: the answer names it with the command, and the record is
// kept until the GPU has the mode.
func TestUnmanageNamesTheModeThatItDoesNotRestore(t *testing.T) {
	for _, c := range []struct {
		name, entry string
		on          bool // before
		command     string
		applied     bool // a spec is applied after the command, instead of another unmanage
	}{
		{"on before", "mode: exclusive", true, "'nvidia-smi -i 1 -mig 1' turns it on", false},
		{"off before", "mode: mig, mig: {layout: [3g.20gb]}", false, "'nvidia-smi -i 1 -mig 0' turns it off", false},
		{"on before, and a spec after the command", "mode: exclusive", true, "'nvidia-smi -i 1 -mig 1' turns it on", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}, scenarios.Board{Model: "a100-40", MIG: c.on})
				w.startDaemon()
				if _, op, refusal := w.apply(entries(c.entry), "?allow-reset=1"); refusal != nil || op.State != "done" {
					t.Fatalf("the spec: %v, %+v", refusal, op)
				}
				unmanage := func() string {
					var res api.ApplyResult
					if refusal := w.do(http.MethodPost, "/v1/unmanage?all=1&force=1", "", &res); refusal != nil {
						t.Fatal(refusal)
					}
					w.waitIdle(res.Operation)
					return strings.Join(res.Plan.Warnings, "; ")
				}
				for range 2 {
					if warnings := unmanage(); !strings.Contains(warnings, c.command) {
						t.Errorf("the warnings are %q", warnings)
					}
					if was := w.state.Stored().OriginalModes[w.ids[1]].MIG; was == nil || *was != c.on {
						t.Error("the mode from before is not recorded")
					}
				}
				if _, err := w.node.Driver(77).SetMIGMode(t.Context(), w.ids[1], c.on); err != nil { // The command.
					t.Fatal(err)
				}
				w.waitAnother()
				if c.applied {
					w.mustApply(entries(""))
				} else if warnings := unmanage(); warnings != "" {
					t.Errorf("after the command the warnings are %q", warnings)
				}
				if g := w.truth()[1]; g.MIG.Current != c.on {
					t.Errorf("MIG mode is %+v", g.MIG)
				}
				if n := len(w.state.Stored().OriginalModes); n != 0 {
					t.Errorf("the original modes of %d GPUs are recorded", n)
				}
			})
		})
	}
}

// inventoryOf is the MIG mode, the instances and the compute mode of a GPU.
func (w *virtual) inventoryOf(i int) string {
	return w.layoutOf(i) + ", " + string(w.truth()[i].ComputeMode)
}

// waitAnother lets the converge loop observe the node twice.
func (w *virtual) waitAnother() {
	w.Helper()
	w.observer.Invalidate()
	w.waitIdle(nil)
}
