package daemon

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/test/scenarios"
)

// A MIG mode is shown as pending while the driver reports it so: not after another program took it back, and not after a reset made
// it the mode of the GPU. The reset ends the wait for a boot.
func TestAPendingModeIsShownWhileItIsPending(t *testing.T) {
	for _, c := range []struct {
		name  string
		then  func(*virtual) error
		shown bool // as pending in the end
		on    bool // MIG mode in the end
	}{
		{name: "kept for a boot", shown: true},
		{name: "taken back", then: func(w *virtual) error { return setMode(w, false) }},
		{name: "taken back, and set again", shown: true, then: func(w *virtual) error { return errors.Join(setMode(w, false), setMode(w, true)) }},
		{name: "reset", on: true, then: func(w *virtual) error { return w.node.ResetGPU("0", os.Getpid()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWithoutReset(t)
				if _, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [3g.20gb]}"), "?allow-reset=1"); refusal != nil ||
					op.State != "degraded" {
					t.Fatalf("it ends %+v, %v", op, refusal)
				}
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
				if c.on && (s.GPUs[0].State != "ok" || strings.Join(w.namesOf(0), " ") != "3g.20gb") {
					t.Errorf("after the reset the GPU is %s with %s: %s", s.GPUs[0].State, w.layoutOf(0), s.GPUs[0].Reason)
				}
				text, err := json.Marshal([]any{s.GPUs[0].Reason, s.Node.Conditions})
				if err != nil || strings.Contains(string(text), "pending") {
					t.Errorf("the texts call it pending: %s, %v", text, err)
				}
			})
		})
	}
}

// newWithoutReset is a node whose driver cannot reset its GPU, as in a virtual machine.
func newWithoutReset(t *testing.T) *virtual {
	t.Helper()
	cfg := virtualConfig(t, nil, scenarios.Board{Model: "a100-40"})
	cfg.ResetUnavailable = true
	w := newVirtualOf(t, cfg)
	w.startDaemon()
	return w
}

// A MIG mode that only a boot makes current stays set, and the answer, the status and the next plan say so. The boot is enough:
// the rest is carried out after it, whatever happened to the daemon meanwhile.
func TestAModeThatWaitsForABoot(t *testing.T) {
	const layout = "mode: mig, mig: {layout: [3g.20gb, 1g.5gb]}"
	for _, c := range []struct {
		name      string
		meanwhile func(t *testing.T, w *virtual)
		want      string // the instances after the boot
	}{
		{"nothing", func(*testing.T, *virtual) {}, "1g.5gb 3g.20gb"},
		{"the daemon is restarted", func(_ *testing.T, w *virtual) { w.end(); w.startDaemon(); w.waitIdle(nil) }, "1g.5gb 3g.20gb"},
		{"the daemon is killed", func(_ *testing.T, w *virtual) { w.kill(); w.startDaemon(); w.waitIdle(nil) }, "1g.5gb 3g.20gb"},
		{"the same spec is applied", func(t *testing.T, w *virtual) {
			res, op, refusal := w.apply(specOf(layout), "")
			if refusal != nil || op != nil || res.Changed || len(res.Plan.Warnings) == 0 || !strings.Contains(res.Plan.Warnings[0], "GPU 0 waits for a boot of the host: MIG mode on is pending") {
				t.Errorf("it is answered with %+v, %v", res, refusal)
			}
		}, "1g.5gb 3g.20gb"},
		{"another layout is applied", func(t *testing.T, w *virtual) {
			if res, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [7g.40gb]}"), ""); refusal != nil || op != nil || !res.Changed || !awaits(res.Plan.Unreachable) {
				t.Errorf("it is answered with %+v, %+v, %v", res, op, refusal)
			}
		}, "7g.40gb"},
		{"another layout and a tenant are applied", func(t *testing.T, w *virtual) {
			res, op, refusal := w.apply(specOf("mode: mig, mig: {layout: [7g.40gb]}")+"tenants: [{name: red, memory: {max: 1GiB}}]\n", "")
			if refusal != nil || op == nil || op.State != "degraded" || op.Error.Hint != planner.BootHint || !awaits(res.Plan.Unreachable) {
				t.Errorf("it is answered with %+v, %+v, %v", res, op, refusal)
			}
		}, "7g.40gb"},
		{"it is planned", func(t *testing.T, w *virtual) {
			var plan api.Plan
			if refusal := w.do("GET", "/v1/plan", "", &plan); refusal != nil || !awaits(plan.Unreachable) || len(plan.Steps) > 0 {
				t.Errorf("it is answered with %+v, %v", plan, refusal)
			}
		}, "1g.5gb 3g.20gb"},
		{"a layout that is not possible", func(t *testing.T, w *virtual) {
			if _, _, refusal := w.apply(specOf("mode: mig, mig: {layout: [7g.40gb, 1g.5gb]}"), "?allow-reset=1"); refusal == nil || refusal.Kind != api.KindInfeasible {
				t.Errorf("it is answered with %v", refusal)
			}
		}, "1g.5gb 3g.20gb"},
		{"a retry", func(t *testing.T, w *virtual) {
			if refusal := w.do("POST", "/v1/gpus/0/retry?allow-reset=1", "", nil); refusal != nil {
				t.Errorf("it is answered with %v", refusal)
			}
			w.waitIdle(nil)
		}, "1g.5gb 3g.20gb"},
		{"the mode is taken back, and set by the retry that the condition names", func(t *testing.T, w *virtual) {
			must(t, setMode(w, false))
			w.waitIdle(nil)
			if hint := w.heldHint(); !strings.Contains(hint, "gpushare gpu retry 0") {
				t.Errorf("the hint is %q", hint)
			}
			refusal := w.do("POST", "/v1/gpus/0/retry", "", nil)
			if refusal == nil || !strings.Contains(refusal.Hint, "'gpushare gpu retry 0 --allow-reset'") {
				t.Fatalf("it is answered with %+v", refusal)
			}
			if refusal := w.do("POST", "/v1/gpus/0/retry?allow-reset=1", "", nil); refusal != nil {
				t.Errorf("it is answered with %v", refusal)
			}
			w.waitIdle(nil)
		}, "1g.5gb 3g.20gb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWithoutReset(t)
				_, op, refusal := w.apply(specOf(layout), "?allow-reset=1")
				if refusal != nil || op.State != "degraded" ||
					!strings.Contains(op.Error.Message, "is turned on by the next boot of the host") ||
					!strings.Contains(op.Error.Hint, "'systemctl reboot' makes the mode current") {
					t.Fatalf("it ends %+v, %v", op, refusal)
				}
				c.meanwhile(t, w)
				w.waitIdle(nil)
				if s := w.statusNow().GPUs[0]; s.State != "held" || !strings.Contains(s.Reason, "by the next boot of the host") ||
					!s.MIG.Pending {
					t.Errorf("before the boot the GPU is %s: %s; %+v", s.State, s.Reason, s.MIG)
				}
				if hint := w.heldHint(); hint != planner.BootHint {
					t.Errorf("before the boot the hint is %q", hint)
				}
				w.reboot()
				w.waitIdle(nil)
				s := w.statusNow()
				if names := strings.Join(w.namesOf(0), " "); names != c.want || s.GPUs[0].State != "ok" || len(s.Node.Conditions) > 0 {
					t.Errorf("after the boot the GPU is %s with %q: %s; %+v", s.GPUs[0].State, names, s.GPUs[0].Reason, s.Node.Conditions)
				}
			})
		})
	}
}

// The same for the other direction, and for a boot that does not help: the mode was taken back before it.
func TestMIGOffWaitsForABoot(t *testing.T) {
	for _, c := range []struct {
		name      string
		takenBack bool
	}{{name: "a boot"}, {name: "a boot that does not help", takenBack: true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWithoutReset(t)
				w.apply(specOf("mode: mig, mig: {layout: [3g.20gb]}"), "?allow-reset=1")
				w.reboot()
				w.waitIdle(nil)
				if names := strings.Join(w.namesOf(0), " "); names != "3g.20gb" {
					t.Fatalf("the GPU has %q", names)
				}
				if _, op, refusal := w.apply(specOf("mode: exclusive"), "?allow-reset=1"); refusal != nil || op.State != "degraded" ||
					!strings.Contains(op.Error.Message, "is turned off by the next boot") {
					t.Fatalf("it ends %+v, %v", op, refusal)
				}
				if c.takenBack {
					must(t, setMode(w, true))
				}
				w.reboot()
				w.waitIdle(nil)
				if !c.takenBack {
					if s := w.statusNow(); w.layoutOf(0) != "MIG off: " || s.GPUs[0].State != "ok" || len(s.Node.Conditions) > 0 {
						t.Errorf("after the boot the GPU is %s with %q; %+v", s.GPUs[0].State, w.layoutOf(0), s.Node.Conditions)
					}
					return
				}
				if s := w.statusNow().GPUs[0]; s.State != "held" ||
					!strings.Contains(s.Reason, "this GPU must be reset for it; add --allow-reset") {
					t.Fatalf("after the boot the GPU is %s: %s", s.State, s.Reason)
				}
				if refusal := w.do("POST", "/v1/gpus/0/retry?allow-reset=1", "", nil); refusal != nil {
					t.Fatal(refusal)
				}
				w.waitIdle(nil)
				w.reboot()
				w.waitIdle(nil)
				if s := w.statusNow().GPUs[0]; w.layoutOf(0) != "MIG off: " || s.State != "ok" {
					t.Errorf("after the second boot the GPU is %s with %q", s.State, w.layoutOf(0))
				}
			})
		})
	}
}

// Unmanaging all takes back a MIG mode that waits for a boot, also where the driver reports no profiles and those of the board are not
// known. The mode from before is recorded until no other is pending.
func TestUnmanageOfAModeThatWaitsForABoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := virtualConfig(t, nil, scenarios.Board{Model: "a100-40"})
		unknown := *cfg.GPUs[0].Model
		unknown.Name = "NVIDIA unheard-of"
		cfg.GPUs[0].Model, cfg.ResetUnavailable = &unknown, true
		w := newVirtualOf(t, cfg)
		w.startDaemon()
		if _, op, refusal := w.apply(specOf("mode: mig, mig: {dynamic: true}"), "?allow-reset=1"); refusal != nil ||
			op.State != "degraded" {
			t.Fatalf("it ends %+v, %v", op, refusal)
		}
		if g, _ := w.observer.Last().GPU(w.ids[0]); g.Profiles != nil || g.MIG.Current || !g.MIG.Pending {
			t.Fatalf("the GPU has %+v: the test shows nothing", g.MIG)
		}
		w.mustUnmanage("?all=1")
		if n := len(w.state.Stored().OriginalModes); n != 0 {
			t.Errorf("the original modes of %d GPUs are recorded", n)
		}
		w.reboot()
		w.waitIdle(nil)
		if now := w.layoutOf(0); now != "MIG off: " {
			t.Errorf("after the boot the GPU has %q", now)
		}
	})
}

// awaits reports whether a plan says of the only GPU, once, that it waits for a boot.
func awaits(list []api.Unreachable) bool {
	return len(list) == 1 && list[0].GPU != "" && list[0].Hint == planner.BootHint &&
		strings.Contains(list[0].Reason, "by the next boot of the host")
}

// heldHint is the hint of the condition about the held GPU.
func (w *virtual) heldHint() string {
	w.Helper()
	for _, c := range w.statusNow().Node.Conditions {
		if c.Kind == "held" {
			return c.Hint
		}
	}
	return ""
}

// setMode sets the MIG mode of GPU 0 as another program does.
func setMode(w *virtual, on bool) error {
	d := w.node.Driver(78)
	_, err := d.SetMIGMode(w.Context(), w.ids[0], on)
	return errors.Join(err, d.Close())
}
