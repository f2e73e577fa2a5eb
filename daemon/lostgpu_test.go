package daemon

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/test/scenarios"
)

// twoGPUs is a spec of two GPUs with one instance each, and a grant on each of them.
func twoGPUs(first, second string) string {
	return fmt.Sprintf(`version: v1
node: {enforce: on, isolation: {logins: open}}
gpus:
  - {select: {index: 0}, mode: mig, mig: {layout: [%s]}}
  - {select: {index: 1}, mode: mig, mig: {layout: [%s]}}
tenants:
  - name: red
    grants:
      - {name: zero, mig: %s, gpus: {index: 0}}
      - {name: one, mig: %s, gpus: {index: 1}}
`, first, second, first, second)
}

// badDay is one way for GPU 1 to stop answering, and to answer again.
type badDay struct {
	name   string
	begins func(*virtual)
	reason string
	hint   string
	ends   func(*virtual)
}

// inMaintenance does something while a maintenance has parked the worker, as the hints say that a GPU is reset.
func (w *virtual) inMaintenance(do func()) {
	w.Helper()
	ctx, stop := context.WithCancel(w.Context())
	defer stop()
	go w.maintenance.Run(ctx)
	w.maintain("", `{"driver":true}`)
	synctest.Wait()
	if !w.driver.Status().Parked {
		w.Fatal("the worker is not parked")
	}
	do()
	w.waitIdle(nil)
	w.maintain("/off", "")
}

func badDays() []badDay {
	hangs := func(w *virtual) {
		if _, err := w.node.AddFault(gpusim.Fault{Call: "DeviceGetMemoryInfo", GPU: "1", Do: gpusim.FaultHang, Times: -1}); err != nil {
			w.Fatal(err)
		}
	}
	retry := func(w *virtual) {
		var op api.Operation
		if refusal := w.do(http.MethodPost, "/v1/gpus/1/retry", "", &op); refusal != nil {
			w.Fatal(refusal)
		}
		w.waitIdle(&op)
	}
	const boots = "if the reset is refused, or the GPU is lost again, 'systemctl reboot' and then 'gpushare maintenance off'"
	const resets, retries = "nvidia-smi --gpu-reset -i 1", "gpushare gpu retry 1"
	return []badDay{
		{"XID 79", func(w *virtual) { w.node.Lose(1) }, "the GPU is lost", resets, (*virtual).reboot},
		{"XID 79, and what the hint says", func(w *virtual) { w.node.Lose(1) }, "the GPU is lost", boots, func(w *virtual) {
			w.inMaintenance(func() {
				if err := w.node.ResetGPU("1", os.Getpid()); err == nil || !strings.Contains(err.Error(), "needs a reboot") {
					w.Fatalf("the reset: %v", err)
				}
				w.reboot()
				w.waitIdle(nil)
			})
		}},
		{"XID 79, and the daemon is restarted", func(w *virtual) {
			w.node.Lose(1)
			w.end()
			w.unknownWhenLost = true
			w.startDaemon()
		}, "the GPU is lost", resets, (*virtual).reboot},
		{"it hangs", hangs, "the driver did not answer in time", retries, func(w *virtual) { w.node.ClearFaults(0); retry(w) }},
		{"it hangs, and answers by itself", hangs, "the driver did not answer in time", retries, func(w *virtual) {
			w.node.ClearFaults(0)
			w.end()
			w.startDaemon() // A new worker has no excluded GPUs.
		}},
	}
}

// A GPU that does not answer holds back no other. The same spec changes nothing, other GPUs are changed, and a change of this
// GPU takes effect when it answers again. Until then nothing is written to it.
func TestOneLostGPU(t *testing.T) {
	for _, day := range badDays() {
		t.Run(day.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newVirtual(t, nil, scenarios.Board{Model: "a100-40", MIG: true}, scenarios.Board{Model: "a100-40", MIG: true})
				w.startDaemon()
				if _, op, refusal := w.apply(twoGPUs("3g.20gb", "3g.20gb"), ""); refusal != nil || op == nil || op.State != "done" {
					t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
				}
				was, rules := w.layoutOf(1), w.rulesOf("one")
				day.begins(w)
				w.waitIdle(nil)
				if _, err := w.node.AddFault(gpusim.Fault{Call: "write", GPU: "1", Nth: 1 << 20, Do: gpusim.FaultFail}); err != nil {
					t.Fatal(err)
				}
				want := api.HeldGPU{GPU: string(w.ids[1]), Index: 1, Reason: day.reason, Command: "gpushare gpu retry 1"}
				held := func(p *api.Plan) bool { return len(p.Held) == 1 && p.Held[0] == want }

				res, op, refusal := w.apply(twoGPUs("3g.20gb", "3g.20gb"), "")
				if refusal != nil || op != nil || res.Changed || !held(&res.Plan) {
					t.Errorf("the same spec: %v, %+v, %+v", refusal, op, res.Plan)
				}
				w.doctorFails("GPU 1: ")
				w.reportsOnce(1, "gpu", day.hint) // No XID reaches this node.

				res, op, refusal = w.apply(twoGPUs("2g.10gb", "3g.20gb"), "")
				if refusal != nil || op == nil || op.State != "degraded" || !held(&res.Plan) ||
					!strings.Contains(op.Error.Message, "GPU 1 is held, because it does not answer: "+day.reason) ||
					!strings.Contains(op.Error.Hint, want.Command) {
					t.Fatalf("a change of the other GPU: %v, %+v", refusal, op)
				}
				if names := w.namesOf(0); !slices.Equal(names, []string{"2g.10gb"}) {
					t.Errorf("the other GPU has %q", names)
				}

				if now := w.rulesOf("one"); now != rules || rules == "" {
					t.Errorf("its slice allows %s, and allowed %s", now, rules)
				}

				res, op, refusal = w.apply(twoGPUs("2g.10gb", "7g.40gb"), "")
				if refusal != nil || op != nil && op.State != "degraded" || !held(&res.Plan) {
					t.Fatalf("a change of this GPU: %v, %+v", refusal, op)
				}
				if now := w.layoutOf(1); now != was {
					t.Errorf("it has %q, and had %q", now, was)
				}
				if f := w.node.Faults(); f[len(f)-1].Seen != 0 {
					t.Errorf("%d calls write to it", f[len(f)-1].Seen)
				}
				var plan api.Plan
				if refusal := w.do(http.MethodGet, "/v1/plan", "", &plan); refusal != nil || !held(&plan) {
					t.Errorf("the plan: %v, %+v", refusal, plan)
				}

				day.ends(w)
				w.waitIdle(nil)
				if names := w.namesOf(1); !slices.Equal(names, []string{"7g.40gb"}) {
					t.Errorf("when it answers again it has %q\n%s", names, w.log)
				}
				for i, g := range w.statusNow().GPUs {
					if g.State != "ok" {
						t.Errorf("GPU %d is %s: %s", i, g.State, g.Reason)
					}
				}
				if c := w.statusNow().Node.Conditions; len(c) > 0 {
					t.Errorf("conditions remain: %+v", c)
				}
				if stale := w.staleRules(); len(stale) > 0 || len(w.violations) > 0 {
					t.Errorf("%q, %q", stale, w.violations)
				}
				if res, op, refusal := w.apply(twoGPUs("2g.10gb", "7g.40gb"), ""); refusal != nil || op != nil || res.Changed ||
					len(res.Plan.Held) > 0 {
					t.Errorf("the same spec at the end: %v, %+v", refusal, res.Plan)
				}
			})
		})
	}
}

// reportsOnce expects one condition, and one failed check of the doctor, about a GPU that does not answer.
func (w *virtual) reportsOnce(i int, kind, hint string) {
	w.Helper()
	var about []api.Condition
	for _, c := range w.statusNow().Node.Conditions {
		if c.GPU == string(w.ids[i]) {
			about = append(about, c)
		}
	}
	if len(about) != 1 || about[0].Kind != kind || !strings.Contains(about[0].Hint, hint) {
		w.Fatalf("the conditions about GPU %d are %+v, and not one of kind %s", i, about, kind)
	}
	var d api.Doctor
	if refusal := w.do(http.MethodGet, "/v1/doctor", "", &d); refusal != nil {
		w.Fatal(refusal)
	}
	var found []string
	for _, c := range d.Checks {
		if c.Result != "ok" && strings.Contains(c.Message, fmt.Sprint("GPU ", i)) {
			found = append(found, c.Name+" "+c.Result)
		}
	}
	if want := []string{kind + " fail"}; !slices.Equal(found, want) {
		w.Errorf("the checks of the doctor about GPU %d are %q, and not %q", i, found, want)
	}
}

// doctorFails expects a failed check with this text.
func (w *virtual) doctorFails(text string) {
	w.Helper()
	var d api.Doctor
	if refusal := w.do(http.MethodGet, "/v1/doctor", "", &d); refusal != nil {
		w.Fatal(refusal)
	}
	if !slices.ContainsFunc(
		d.Checks, func(c api.Check) bool { return c.Result == "fail" && strings.Contains(c.Message, text) && c.Hint != "" },
	) {
		w.Errorf("the doctor does not fail with %q: %+v", text, d.Checks)
	}
}

// rulesOf are the devices that the slice of a grant of red allows.
func (w *virtual) rulesOf(grant string) string {
	for _, s := range w.port.list() {
		if s.Name.Grant == grant {
			return fmt.Sprint(s.Devices)
		}
	}
	return ""
}
