package daemon

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/test/scenarios"
)

// A node that differs from its spec, or that could not be read, never has a plan that says that there is nothing to do: either
// it has a step, or the reason why it has none.
func TestAPlanSaysWhatCannotBeReached(t *testing.T) {
	const layout = "mode: mig, mig: {layout: [3g.20gb, 2g.10gb]}"
	ampere := scenarios.Board{Model: "a100-40", MIG: true}
	for _, c := range []struct {
		name   string
		begins func(*testing.T, *virtual)
		says   string // in the reasons
		helps  string // in the hints
		steps  bool   // it can be planned
		fails  bool   // the request fails: nothing is known of the node
	}{
		{name: "nothing differs", begins: func(*testing.T, *virtual) {}},
		{name: "an instance was removed by hand", begins: removeByHand, steps: true},
		{
			name: "the layout and MIG mode were removed by hand", says: "reset", helps: "gpushare gpu retry 0 --allow-reset",
			begins: func(t *testing.T, w *virtual) {
				for range 2 {
					removeByHand(t, w)
				}
				if err := errors.Join(setMode(w, false), w.node.ResetGPU("0", os.Getpid())); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			name: "a foreign instance is in the way", says: "not managed by gpushare", helps: "gpushare mig remove 0",
			begins: func(t *testing.T, w *virtual) {
				for range 2 {
					removeByHand(t, w)
				}
				createByHand(t, w, gpu.NewInstance{ProfileID: 0, Placement: gpu.Placement{Size: 8}})
			},
		},
		{name: "the GPU is lost", says: "lost", helps: "gpushare gpu retry 0", begins: func(_ *testing.T, w *virtual) { w.node.Lose(0) }},
		{name: "the driver is not loaded", fails: true, begins: func(t *testing.T, w *virtual) {
			addFault(t, w, gpusim.Fault{Call: "DeviceGetCount", Do: gpusim.FaultFail, Code: gpusim.DriverNotLoaded, Times: -1})
		}},
		{name: "the power limit is not readable", says: "power limit", begins: func(t *testing.T, w *virtual) {
			w.mustApply(specOf(layout + ", health: {power_cap: 300W}"))
			if err := os.WriteFile(filepath.Join(w.changes.Power.Dir, string(w.ids[0])+".json"), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "the power limit was changed", steps: true, begins: func(t *testing.T, w *virtual) {
			w.mustApply(specOf(layout + ", health: {power_cap: 300W}"))
			if err := w.node.Driver(79).SetPowerLimit(t.Context(), w.ids[0], 350_000); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "the accepted spec is not readable", says: "cannot be read by this version", helps: "apply a spec", begins: func(t *testing.T, w *virtual) {
			err := w.state.Store.Update(func(s *store.State) error {
				s.Accepted.YAML = "version: v1\nfuture: {}\n"
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			w.end()
			w.startDaemon()
		}},
		{name: "a failed change left the GPU held", says: "is held", helps: "gpushare gpu retry 0", begins: func(t *testing.T, w *virtual) {
			err := w.state.Store.Update(func(s *store.State) error {
				closing.CloseHeld(s, w.ids[0], 1, "it failed", "", time.Now())
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newVirtual(t, nil, ampere)
				w.startDaemon()
				w.mustApply(specOf(layout))
				c.begins(t, w)
				w.Invalidate()
				w.observer.Invalidate()
				var p api.Plan
				refusal := w.do(http.MethodGet, "/v1/plan", "", &p)
				if c.fails {
					if refusal == nil {
						t.Errorf("nothing could be read, and the plan is %+v", p)
					}
					return
				}
				if refusal != nil {
					t.Fatal(refusal)
				}
				var reasons, hints []string
				for _, h := range p.Held {
					reasons, hints = append(reasons, h.Reason), append(hints, h.Command)
				}
				for _, u := range p.Unreachable {
					reasons, hints = append(reasons, u.Reason), append(hints, u.Hint)
				}
				if p.Complete() != (c.says == "") || p.Empty == c.steps {
					t.Errorf("the plan is %+v", p)
				}
				if all := strings.Join(reasons, "\n"); !strings.Contains(all, c.says) {
					t.Errorf("the reasons are %q, without %q", all, c.says)
				}
				if all := strings.Join(hints, "\n"); !strings.Contains(all, c.helps) {
					t.Errorf("the hints are %q, without %q", all, c.helps)
				}
			})
		})
	}
}

// removeByHand destroys the first instance as another program does.
func removeByHand(t *testing.T, w *virtual) {
	t.Helper()
	if err := w.node.Driver(77).DestroyInstance(context.Background(), w.ids[0], w.truth()[0].Instances[0].ID); err != nil {
		t.Fatal(err)
	}
}

// createByHand creates an instance as another program does.
func createByHand(t *testing.T, w *virtual, in gpu.NewInstance) {
	t.Helper()
	if _, err := w.node.Driver(77).CreateInstance(context.Background(), w.ids[0], in); err != nil {
		t.Fatal(err)
	}
}

func addFault(t *testing.T, w *virtual, f gpusim.Fault) {
	t.Helper()
	if _, err := w.node.AddFault(f); err != nil {
		t.Fatal(err)
	}
}
