package daemon

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/test/scenarios"
)

// A driver up to branch 550 reports no profiles while MIG mode is off. A fixed layout is planned and reached there nevertheless,
// comes back after a boot without a request, whether the mode survives it or not, and after a rollback.
func TestLayoutsWhereProfilesNeedMIGMode(t *testing.T) {
	for _, c := range []struct{ driver, board, layout string }{
		{"470.256.02", "a100-40", "3g.20gb, 1g.5gb+me"},
		{"470.256.02", "a30", "2g.12gb, 1g.6gb"},
		{"535.183.01", "a100-40", "3g.20gb, 1g.10gb"},
		{"535.183.01", "h100-80", "3g.40gb, 1g.10gb"},
		{"550.163.01", "a100-80", "1c.3g.40gb, 2c.3g.40gb"},
		{"550.163.01", "h200-141", "4g.71gb, 3g.71gb"},
		{"580.95.05", "h100-80", "3g.40gb, 1g.10gb"},
	} {
		t.Run(c.driver+" "+c.board, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := virtualConfig(t, nil, scenarios.Board{Model: c.board})
				cfg.DriverVersion = c.driver
				w := newVirtualOf(t, cfg)
				w.startDaemon()
				fixed := specOf("mode: mig, mig: {layout: [" + c.layout + "]}")
				res, op, refusal := w.apply(fixed, "?allow-reset=1")
				if refusal != nil || op == nil || op.State != "done" {
					t.Fatalf("it ends %+v, %v", op, refusal)
				}
				compared := slices.ContainsFunc(
					res.Plan.Steps, func(s api.PlanStep) bool { return strings.Contains(s.Text, "compare the driver's MIG profiles") },
				)
				if old := c.driver < "570"; compared != old {
					t.Errorf("the plan compares the profiles: %v", compared)
				}
				reached := w.layoutOf(0)
				inSync := func(when, want string) {
					t.Helper()
					w.waitIdle(nil)
					if is := w.layoutOf(0); is != want {
						t.Errorf("%s the GPU has %q, want %q", when, is, want)
					}
					if s := w.statusNow(); s.GPUs[0].State != "ok" || len(s.Node.Conditions) > 0 {
						t.Errorf("%s the status has %+v, %+v", when, s.GPUs[0], s.Node.Conditions)
					}
				}
				inSync("after the apply", reached)
				w.reboot()
				inSync("after a boot", reached)
				if _, op, refusal := w.apply(specOf("mode: exclusive"), "?allow-reset=1"); refusal != nil || op.State != "done" {
					t.Fatalf("without MIG it ends %+v, %v", op, refusal)
				}
				inSync("without MIG", "MIG off: ")
				if _, op, refusal := w.apply(fixed, "?allow-reset=1"); refusal != nil || op.State != "done" {
					t.Fatalf("back again it ends %+v, %v", op, refusal)
				}
				inSync("back again", reached)
			})
		})
	}
}

// The profiles of a board that are not those that are published: the mode is turned on, the comparison fails, the mode is turned
// off again, and what the driver reported is known to the next attempt, which reaches the layout.
func TestProfilesThatDifferFromThePublishedOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := virtualConfig(t, nil, scenarios.Board{Model: "h100-80"})
		m := *cfg.GPUs[0].Model
		m.Profiles = slices.Clone(m.Profiles)
		for i := range m.Profiles {
			if m.Profiles[i].Name == "3g.40gb" {
				m.Profiles[i].ID = 77
			}
		}
		cfg.GPUs[0].Model = &m
		w := newVirtualOf(t, cfg)
		w.startDaemon()
		fixed := specOf("mode: mig, mig: {layout: [3g.40gb, 1g.10gb]}")
		_, op, refusal := w.apply(fixed, "")
		if refusal != nil || op == nil || op.State != "degraded" || op.Error == nil {
			t.Fatalf("it ends %+v, %v", op, refusal)
		}
		for _, want := range []string{"3g.40gb at 4 (profile id 9)", "it offers 1g.10gb"} {
			if !strings.Contains(op.Error.Message, want) {
				t.Errorf("the reason %q does not name %q", op.Error.Message, want)
			}
		}
		if want := "failed steps were undone; the profiles that the driver reports were recorded, and the next plan uses them, then 'gpushare gpu retry 0' or apply again"; op.Error.Hint != want {
			t.Errorf("the hint is %q", op.Error.Hint)
		}
		if is := w.layoutOf(0); is != "MIG off: " {
			t.Errorf("after the undo the GPU has %q", is)
		}
		// The hint is followed.
		if refusal := w.do(http.MethodPost, "/v1/gpus/0/retry", "", nil); refusal != nil {
			t.Fatal(refusal)
		}
		w.waitIdle(nil)
		if names := strings.Join(w.namesOf(0), " "); names != "1g.10gb 3g.40gb" || w.statusNow().GPUs[0].State != "ok" {
			t.Errorf("after the retry the GPU has %q and is %s", names, w.statusNow().GPUs[0].State)
		}
	})
}

// A board that is in no list: a fixed layout is refused with what leads to it. Once the mode was on, its profiles are known: also
// after a boot that ends the mode, after a new version of the driver, and by the record of a version that did not keep profiles.
func TestProfilesOfAnUnknownBoard(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(*virtual) error
	}{
		{"after a boot", func(*virtual) error { return nil }},
		{"after another version of the driver", func(w *virtual) error { w.node.InstallDriver("535.183.01", nil); return nil }},
		{"by the achieved state alone", func(w *virtual) error {
			return w.state.Store.Update(func(s *store.State) error { s.Profiles = nil; return nil })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newVirtualOf(t, unknownBoard(t))
				w.startDaemon()
				fixed := specOf("mode: mig, mig: {layout: [1c.3g.40gb, 2c.3g.40gb, 1g.10gb]}")
				if _, _, refusal := w.apply(fixed, ""); refusal == nil || !strings.Contains(refusal.Hint, "mig: {dynamic: true}") {
					t.Fatalf("the refusal is %+v", refusal)
				}
				if _, op, refusal := w.apply(specOf("mode: mig, mig: {dynamic: true}"), ""); refusal != nil || op.State != "done" {
					t.Fatalf("dynamic: %+v, %v", op, refusal)
				}
				if _, op, refusal := w.apply(fixed, ""); refusal != nil || op.State != "done" {
					t.Fatalf("the layout: %+v, %v", op, refusal)
				}
				reached := w.layoutOf(0)
				if err := c.then(w); err != nil {
					t.Fatal(err)
				}
				w.reboot()
				w.waitIdle(nil)
				if is, s := w.layoutOf(0), w.statusNow().GPUs[0]; is != reached || s.State != "ok" {
					t.Errorf("after the boot the GPU has %q, want %q; it is %s: %s", is, reached, s.State, s.Reason)
				}
			})
		})
	}
}

// unknownBoard is a node with a board that no list has, whose MIG mode ends with a boot.
func unknownBoard(t *testing.T) gpusim.Config {
	t.Helper()
	cfg := virtualConfig(t, nil, scenarios.Board{Model: "h100-80"})
	m := *cfg.GPUs[0].Model
	m.Name = "NVIDIA X100"
	cfg.GPUs[0].Model = &m
	return cfg
}
