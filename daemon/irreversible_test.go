package daemon

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/test/scenarios"
)

const (
	oneWay  = "mode: mig, mig: {layout: [1c.3g.20gb, 2c.3g.20gb]}"
	another = "mode: mig, mig: {layout: [7g.40gb]}"
	only    = "only --force changes or removes 3g.20gb of 2c+1c"
)

// newAnonymous is a node whose driver reports neither placements nor UUIDs of compute instances.
func newAnonymous(t *testing.T, reports gpusim.ComputeReports) *virtual {
	t.Helper()
	cfg := virtualConfig(t, nil, scenarios.Board{Model: "a100-40", MIG: true})
	cfg.ComputeReports = reports
	w := newVirtualOf(t, cfg)
	w.startDaemon()
	return w
}

// The first apply of a layout that no undo could restore says so, before its steps where the library lacks the functions, else at its end.
func TestTheFirstApplyOfALayoutSaysWhatLeavingItNeeds(t *testing.T) {
	for _, c := range []struct {
		name          string
		reports       gpusim.ComputeReports
		before, after bool
		lacks         string
	}{
		{"placements and UUIDs", gpusim.ComputePlacements, false, false, ""},
		{"UUIDs", gpusim.ComputeUUIDs, false, false, ""},
		{"neither", gpusim.ComputeNothing, false, true, ""},
		{"a library without the functions", gpusim.ComputeLacking, true, true, "lacks nvmlComputeInstanceGetInfo_v2, nvmlDeviceGetMigDeviceHandleByIndex"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newAnonymous(t, c.reports)
				warns := func(p *api.Plan) bool {
					all := strings.Join(p.Warnings, "\n")
					return strings.Contains(all, only) && strings.Contains(all, "neither placement nor UUID") &&
						strings.Contains(all, c.lacks)
				}
				var checked api.ApplyResult
				if refusal := w.do(http.MethodPut, "/v1/spec?check=1", specOf(oneWay), &checked); refusal != nil ||
					warns(&checked.Plan) != c.before {
					t.Errorf("the plan warns: %q, %v", checked.Plan.Warnings, refusal)
				}
				res, op, refusal := w.apply(specOf(oneWay), "")
				if refusal != nil || op == nil || op.State != "done" {
					t.Fatalf("%v, %+v", refusal, op)
				}
				if warns(&res.Plan) != c.before || warns(&op.Plan) != c.after {
					t.Errorf("before the change it warns %q, after it %q", res.Plan.Warnings, op.Plan.Warnings)
				}
				var plan api.Plan
				if refusal := w.do(http.MethodGet, "/v1/plan", "", &plan); refusal != nil ||
					c.after != strings.Contains(strings.Join(plan.Warnings, "\n"), "only --force changes or removes 3g.20gb at") {
					t.Errorf("the plan of the spec in force warns: %q, %v", plan.Warnings, refusal)
				}
				_, _, refusal = w.apply(specOf(another), "")
				if refused := refusal != nil; refused != c.after {
					t.Errorf("another layout without --force: %v", refusal)
				}
			})
		})
	}
}

// With --force the record of the change has the step without an undo, and why. When a later step fails, or the destroy itself in its
// middle, the GPU is held with that reason, and nothing says that it was undone. A retry leads to the spec.
func TestADestroyThatCannotBeUndone(t *testing.T) {
	for _, c := range []struct{ name, fault string }{
		{"a later step fails", "DeviceCreateGpuInstanceWithPlacement"},
		{"it fails in its middle", "GpuInstanceDestroy"},
		{"it fails before it changes anything", "ComputeInstanceDestroy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newAnonymous(t, gpusim.ComputeNothing)
				w.mustApply(specOf(oneWay))
				was := w.layoutOf(0)
				if _, err := w.node.AddFault(gpusim.Fault{Call: c.fault, Do: gpusim.FaultFail, Times: -1}); err != nil {
					t.Fatal(err)
				}
				res, op, refusal := w.apply(specOf(another), "?force=1")
				if refusal != nil || op == nil || op.State != "degraded" || op.Error == nil {
					t.Fatalf("%v, %+v", refusal, op)
				}
				if i := slices.IndexFunc(res.Plan.Steps, func(s api.PlanStep) bool { return s.Kind == mig.KindDestroy }); i < 0 ||
					!strings.Contains(res.Plan.Steps[i].Irreversible, "neither placement nor UUID") {
					t.Errorf("the steps are %+v", res.Plan.Steps)
				}
				held := w.statusNow().GPUs[0]
				said := held.Reason + "; " + op.Error.Message + "; " + op.Error.Hint
				unchanged := w.layoutOf(0) == was
				if held.State != "held" || strings.Contains(said, "could not be created again") == unchanged ||
					strings.Contains(op.Error.Hint, "failed steps were undone") != unchanged {
					t.Errorf("unchanged: %v; it is %s: %s", unchanged, held.State, said)
				}
				w.node.ClearFaults(0)
				hints := named(op.Error.Hint)
				for n := 0; w.statusNow().GPUs[0].State != "ok" && n < maxCommands && len(hints) == 1; n++ {
					words := strings.Fields(hints[0])
					query := ""
					if slices.Contains(words, "--force") {
						query = "?force=1"
					}
					if refusal := w.do(http.MethodPost, "/v1/gpus/"+words[2]+"/retry"+query, "", nil); refusal != nil {
						hints = named(refusal.Hint)
					}
					w.waitIdle(nil)
				}
				if names := w.namesOf(0); !slices.Equal(names, []string{"7g.40gb"}) || w.statusNow().GPUs[0].State != "ok" {
					t.Errorf("the hints %q lead to %q, %s: %s", hints, names, w.statusNow().GPUs[0].State, w.statusNow().GPUs[0].Reason)
				}
			})
		})
	}
}

// A daemon that is killed between the destroy and what follows goes on after its start, with the record.
func TestAKillAfterADestroyThatCannotBeUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAnonymous(t, gpusim.ComputeNothing)
		w.mustApply(specOf(oneWay))
		if _, err := w.node.AddFault(gpusim.Fault{Call: "DeviceCreateGpuInstanceWithPlacement", Do: gpusim.FaultHang}); err != nil {
			t.Fatal(err)
		}
		var res api.ApplyResult
		if refusal := w.do(http.MethodPut, "/v1/spec?force=1", specOf(another), &res); refusal != nil {
			t.Fatal(refusal)
		}
		synctest.Wait()
		var r engine.Record
		if err := json.Unmarshal(w.state.Stored().Change, &r); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(r.Steps, func(s step.Step) bool { return s.Kind == mig.KindDestroy })
		if i < 0 || len(r.Steps[i].Undo) != 0 || !strings.Contains(r.Steps[i].Irreversible, "could not be created again") {
			t.Fatalf("the record has %+v", r.Steps)
		}
		w.kill()
		w.node.ClearFaults(0)
		w.startDaemon()
		w.waitIdle(nil)
		if names := w.namesOf(0); !slices.Equal(names, []string{"7g.40gb"}) || w.statusNow().GPUs[0].State != "ok" {
			t.Errorf("it has %q, and is %+v", names, w.statusNow().GPUs[0])
		}
	})
}
