package daemon

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/power"
	"github.com/gpushare/gpushare/test/scenarios"
)

// capSpec is a node with two exclusive GPUs. node and first are the health of the node and of GPU 0; empty: none.
func capSpec(node, first string) string {
	entry := func(health string) string {
		if health == "" {
			return ""
		}
		return ", health: {power_cap: " + health + "}"
	}
	return fmt.Sprintf(
		"version: v1\nnode: {enforce: on%s}\ngpus:\n  - {select: {index: 0}, mode: exclusive%s}\n  - {select: {index: 1}, mode: exclusive}\n",
		entry(node),
		entry(first),
	)
}

// limitsNow are the true power limits in W, and the number of limits from before that are on disk.
func (w *virtual) limitsNow() string {
	w.Helper()
	var out []string
	for _, g := range w.truth() {
		if g.Health.Power == nil {
			out = append(out, "none")
			continue
		}
		out = append(out, fmt.Sprint(g.Health.Power.Limit/1000))
	}
	files, err := filepath.Glob(filepath.Join(w.dir, "state", "power", "*.json"))
	if err != nil {
		w.Fatal(err)
	}
	return fmt.Sprintf("%s, %d kept", strings.Join(out, " "), len(files))
}

func (w *virtual) wantLimits(want, when string) {
	w.Helper()
	if got := w.limitsNow(); got != want {
		w.Errorf("%s: %s; want %s", when, got, want)
	}
}

func (w *virtual) mustApply(spec string) api.ApplyResult {
	w.Helper()
	res, op, refusal := w.apply(spec, "")
	if refusal != nil || op != nil && op.State != "done" {
		w.Fatalf("%v, %+v", refusal, op)
	}
	return res
}

func (w *virtual) sensor(id, name string, values ...string) {
	w.Helper()
	if err := w.node.SetSensor(id, name, values); err != nil {
		w.Fatal(err)
	}
}

func twoA100s(t *testing.T) *virtual {
	return newVirtual(t, nil, scenarios.Board{Model: "A100-SXM4-40GB"}, scenarios.Board{Model: "A100-SXM4-40GB"})
}

// TestPowerCap sets a cap, keeps it, corrects it and gives the limit from before back.
func TestPowerCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoA100s(t)
		w.sensor("0", "power-limit", "350") // another tool set it before
		w.startDaemon()

		res := w.mustApply(capSpec("250W", "300W"))
		var steps []string
		for _, s := range res.Plan.Steps {
			if s.Kind == power.KindLimit {
				steps = append(steps, s.Text+": "+s.Reason)
			}
		}
		if got, want := strings.Join(
			steps, "\n",
		), "set the power limit to 300 W: power_cap is 300 W, and the limit is 350 W\nset the power limit to 250 W: power_cap is 250 W, and the limit is 400 W"; got != want {
			t.Errorf("steps:\n%s\nwant\n%s", got, want)
		}
		w.wantLimits("300 250, 2 kept", "applied")

		writes := w.node.Counters().Writes
		if res := w.mustApply(capSpec("250W", "300W")); res.Changed || w.node.Counters().Writes != writes {
			t.Errorf("applied twice: changed %v, %d writes", res.Changed, w.node.Counters().Writes-writes)
		}

		w.mustApply(capSpec("250W", "280W"))
		w.wantLimits("280 250, 2 kept", "another cap")

		// The daemon reads the power with its range every ReadInterval, not in every pass. An observation has the limit only.
		reads := w.node.Counters().Calls["DeviceGetPowerManagementLimitConstraints"]
		for range 10 {
			w.waitIdle(nil)
		}
		if n := w.node.Counters().Calls["DeviceGetPowerManagementLimitConstraints"] - reads; n != 0 {
			t.Errorf("%d readings in passes at one time", n)
		}
		w.sensor("0", "power-limit", "400")
		time.Sleep(power.ReadInterval)
		w.waitIdle(nil)
		w.wantLimits("280 250, 2 kept", "changed from outside")
		if _, text := w.converger.LastDrift(); text != "the power limit of GPU 0 (NVIDIA A100-SXM4-40GB): 280 W → 400 W" {
			t.Errorf("the drift: %q", text)
		}

		// A driver load forgets the limit: it is set again, and is no change from outside.
		w.reload()
		w.waitIdle(nil)
		w.wantLimits("280 250, 2 kept", "after a driver load")
		if n := w.Counters.Drifts.Load(); n != 0 { // of this run
			t.Errorf("%d drifts after a driver load", n)
		}

		// The limit from before is now that of the new driver load.
		w.mustApply(capSpec("", ""))
		w.wantLimits("400 400, 0 kept", "without the keys")
	})
}

// TestPowerCapIsRestored gives the limit from before back on every way out, also in another run of the daemon.
func TestPowerCapIsRestored(t *testing.T) {
	const none = "version: v1\nnode: {enforce: on}\n"
	for name, leave := range map[string]func(*virtual){
		"no key":       func(w *virtual) { w.mustApply(capSpec("", "")) },
		"no entry":     func(w *virtual) { w.mustApply(none) },
		"external":     func(w *virtual) { w.mustApply(none + "gpus: [{select: {all: true}, mode: external}]\n") },
		"unmanage":     func(w *virtual) { w.mustUnmanage("") },
		"unmanage all": func(w *virtual) { w.mustUnmanage("?all=true") },
		"another run": func(w *virtual) {
			w.kill()
			w.startDaemon()
			w.mustApply(capSpec("", ""))
		},
		"the run directory is lost": func(w *virtual) {
			w.end()
			if err := os.RemoveAll(filepath.Join(w.dir, "run")); err != nil {
				w.Fatal(err)
			}
			w.startDaemon()
			w.mustUnmanage("")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := twoA100s(t)
				w.sensor("0", "power-limit", "350")
				w.startDaemon()
				w.mustApply(capSpec("300W", ""))
				w.wantLimits("300 300, 2 kept", "applied")
				leave(w)
				w.wantLimits("350 400, 0 kept", "left")
			})
		})
	}
}

func (w *virtual) mustUnmanage(query string) {
	w.Helper()
	var res api.ApplyResult
	if refusal := w.do(http.MethodPost, "/v1/unmanage"+query, "", &res); refusal != nil {
		w.Fatal(refusal)
	}
	if op := w.waitIdle(res.Operation); op != nil && op.State != "done" {
		w.Fatalf("%+v", op)
	}
}

// TestPowerCapThatIsRefused changes nothing.
func TestPowerCapThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "A100-SXM4-40GB"}, scenarios.Board{Model: "RTX-PRO-6000-96GB"})
		w.startDaemon()
		for _, c := range []struct {
			name, spec string
			kind       api.Kind
			says       string
		}{
			{"too high", capSpec("", "500W"), api.KindInfeasible, "gpus[0].health.power_cap: 500 W is outside of what GPU 0 (NVIDIA A100-SXM4-40GB) can have: 100 W to 400 W"},
			{"too low", capSpec("", "99W"), api.KindInfeasible, "99 W is outside of what GPU 0 (NVIDIA A100-SXM4-40GB) can have: 100 W to 400 W"},
			{"no power", capSpec("300W", ""), api.KindInfeasible, "node.health.power_cap: GPU 1 (NVIDIA RTX PRO 6000 Blackwell Server Edition) does not report its power, so its limit cannot be set"},
			{"no unit", capSpec("", "300"), api.KindInvalid, "has no unit: write 300W"},
			{"external", strings.ReplaceAll(capSpec("", "300W"), "mode: exclusive, health", "mode: external, health"), api.KindInvalid, "has no meaning with mode: external"},
		} {
			_, op, refusal := w.apply(c.spec, "")
			if refusal == nil || op != nil || refusal.Kind != c.kind || !strings.Contains(refusal.Message, c.says) {
				t.Errorf("%s: %v; want %s", c.name, refusal, c.says)
			}
		}
		w.wantLimits("400 none, 0 kept", "refused")
	})
}

// TestPowerCapThatIsNotKept holds a GPU whose limit reads back as another one, and says so.
func TestPowerCapThatIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoA100s(t)
		w.startDaemon()
		w.mustApply(capSpec("", "300W"))
		w.sensor("0", "power-limit", "400")
		if _, err := w.node.AddFault(
			gpusim.Fault{Call: "DeviceSetPowerManagementLimit", Times: -1, Do: gpusim.FaultFail, Code: gpusim.NoPermission},
		); err != nil {
			t.Fatal(err)
		}
		time.Sleep(power.ReadInterval)
		w.waitIdle(nil)
		w.wantLimits("400 400, 1 kept", "refused by the driver")
		found := false
		for _, c := range w.Conditions.List() {
			found = found ||
				c.Kind == "power" &&
					strings.Contains(c.Message, "the power limit of GPU 0 (NVIDIA A100-SXM4-40GB) is 400 W, and power_cap is 300 W")
		}
		if !found {
			t.Errorf("conditions %+v", w.Conditions.List())
		}
		w.node.ClearFaults(0)
		time.Sleep(power.ReadInterval)
		w.waitIdle(nil)
		w.wantLimits("300 400, 1 kept", "corrected later")
	})
}

// TestPowerCapAfterAReset: a change of the MIG mode resets the GPU, which removes the limit. The change sets it again, and that is no
// drift.
func TestPowerCapAfterAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newVirtual(t, nil, scenarios.Board{Model: "A100-SXM4-40GB"})
		w.startDaemon()
		const node = "version: v1\nnode: {enforce: on, health: {power_cap: 300W}}\n"
		w.mustApply(node + "gpus: [{select: {all: true}, mode: exclusive}]\n")
		w.wantLimits("300, 1 kept", "applied")
		resets := w.truth()[0].Resets
		if _, op, refusal := w.apply(
			node+"gpus: [{select: {all: true}, mode: mig, mig: {layout: [3g.20gb]}}]\n", "?allow-reset=true",
		); refusal != nil ||
			op.State != "done" {
			t.Fatalf("%v, %+v", refusal, op)
		}
		if w.truth()[0].Resets == resets {
			t.Fatal("the GPU was not reset")
		}
		w.wantLimits("300, 1 kept", "after a reset")
		if n := w.Counters.Drifts.Load(); n != 0 {
			t.Errorf("%d drifts", n)
		}
	})
}
