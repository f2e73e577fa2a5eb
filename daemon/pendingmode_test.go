package daemon

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/scenarios"
)

// A MIG mode is shown as pending while the driver reports it so: not after the change that set it was undone, not after
// another program took it back, and not after a reset made it the mode of the GPU.
func TestAPendingModeIsShownWhileItIsPending(t *testing.T) {
	for _, c := range []struct {
		name  string
		then  func(*virtual) error
		kept  bool // the undo of the mode fails
		shown bool // as pending in the end
		on    bool // MIG mode in the end
	}{
		{name: "undone"},
		{name: "not undone", kept: true, shown: true},
		{name: "taken back", kept: true, then: func(w *virtual) error { return setMode(w, false) }},
		{name: "reset", kept: true, on: true, then: func(w *virtual) error { return w.node.ResetGPU("0", os.Getpid()) }},
		{name: "set by another program", shown: true, then: func(w *virtual) error { return setMode(w, true) }},
		{name: "set by another program, and reset", on: true, then: func(w *virtual) error {
			if err := setMode(w, true); err != nil {
				return err
			}
			return w.node.ResetGPU("0", os.Getpid())
		}},
		{name: "set by another program, and taken back", then: func(w *virtual) error {
			if err := setMode(w, true); err != nil {
				return err
			}
			return setMode(w, false)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := virtualConfig(t, nil, scenarios.Board{Model: "a100-40"})
				cfg.ResetUnavailable = true
				w := newVirtualOf(t, cfg)
				w.startDaemon()
				if c.kept {
					if _, err := w.node.AddFault(gpusim.Fault{Call: "DeviceSetMigMode", Nth: 2, Do: gpusim.FaultFail, Times: -1}); err != nil {
						t.Fatal(err)
					}
				}
				if _, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [3g.20gb]}"), "?allow-reset=1"); refusal != nil || op.State != "degraded" {
					t.Fatalf("it ends %+v, %v", op, refusal)
				}
				w.node.ClearFaults(0)
				if c.then != nil {
					if err := c.then(w); err != nil {
						t.Fatal(err)
					}
				}
				w.waitIdle(nil)
				s := w.statusNow()
				m := s.GPUs[0].MIG
				if m == nil || m.Enabled != c.on || (m.Enabled != m.Pending) != c.shown {
					t.Errorf("the status has %+v", m)
				}
				text, err := json.Marshal([]any{s.GPUs[0].Reason, s.Node.Conditions})
				if err != nil || strings.Contains(string(text), "pending") {
					t.Errorf("the texts call it pending: %s, %v", text, err)
				}
			})
		})
	}
}

// setMode sets the MIG mode of GPU 0 as another program does.
func setMode(w *virtual, on bool) error {
	d := w.node.Driver(78)
	_, err := d.SetMIGMode(w.Context(), w.ids[0], on)
	return errors.Join(err, d.Close())
}
