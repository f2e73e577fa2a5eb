package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/nodefile"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/test/scenarios"
)

// load loads the driver again under a running daemon: it finds the boards that are plugged then.
func (w *virtual) load() {
	w.Helper()
	if err := w.node.ReloadDriver(true); err != nil {
		w.Fatal(err)
	}
	w.writeHost()
	w.waitIdle(nil)
}

// layouts are the instances of each GPU, by UUID.
func (w *virtual) layouts() map[gpu.UUID]string {
	out := map[gpu.UUID]string{}
	for i, g := range w.truth() {
		out[g.Identity.UUID] = w.layoutOf(i)
	}
	return out
}

// inventory is the one condition about a GPU, without its hint.
func (w *virtual) inventory(id gpu.UUID) string {
	w.Helper()
	var out []string
	for _, c := range w.statusNow().Node.Conditions {
		if c.Kind == "inventory" && c.GPU == string(id) && c.Hint != "" {
			out = append(out, c.Message)
		}
	}
	return strings.Join(out, "; ")
}

// gpuState is the state of a GPU in the status; empty if it is not there.
func (w *virtual) gpuState(id gpu.UUID) string {
	w.Helper()
	for _, g := range w.statusNow().GPUs {
		if g.UUID == string(id) {
			return g.State
		}
	}
	return ""
}

// The boards of a node change. The status says how, the spec in force keeps its GPUs, the others go on, nothing that no spec is
// about is written, and the same spec, or an apply, settles it.
func TestBoardsThatChange(t *testing.T) {
	const pci = "0000:01:00.0" // before all others, so that every index moves
	board := scenarios.Board{Model: "a100-40", MIG: true}
	for _, c := range []struct {
		name    string
		change  func(t *testing.T, n *gpusim.Node) (added gpu.UUID)
		missing bool   // GPU 1 is missing then
		moved   bool   // GPUs have other indexes then
		zero    string // in the condition about GPU 0 after a load of the driver
		one     string // and in that about GPU 1
		again   string // what the same spec reaches: "held" or "changes"
	}{
		{
			name: "one falls off the bus", missing: true, again: "held", one: "is missing: the driver does not find it",
			change: func(t *testing.T, n *gpusim.Node) gpu.UUID { must(t, n.RemoveGPU("1")); return "" },
		},
		{
			name: "one is replaced", missing: true, again: "changes", one: "was replaced: GPU 1 (GPU-",
			change: func(t *testing.T, n *gpusim.Node) gpu.UUID {
				id, err := n.ReplaceGPU("1")
				must(t, err)
				return id
			},
		},
		{
			name: "one is plugged", moved: true, again: "changes", zero: "GPU 1 had the index 0", one: "GPU 2 had the index 1",
			change: func(t *testing.T, n *gpusim.Node) gpu.UUID {
				m, err := nodefile.Model("a100-40")
				must(t, err)
				must(t, n.AddGPU(gpusim.GPUConfig{Model: m, PCI: pci}))
				return "new"
			},
		},
		{
			name: "two are swapped", moved: true, again: "changes", zero: "GPU 1 had the index 0", one: "GPU 0 had the index 1",
			change: func(t *testing.T, n *gpusim.Node) gpu.UUID { must(t, n.SwapGPUs("0", "1")); return "" },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newVirtual(t, nil, board, board)
				w.startDaemon()
				spec := twoGPUs("3g.20gb", "2g.10gb")
				if _, op, refusal := w.apply(spec, ""); refusal != nil || op == nil || op.State != "done" {
					t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
				}
				zero, one, was := w.ids[0], w.ids[1], w.layouts()
				added := c.change(t, w.node)
				w.waitIdle(nil)
				if c.missing && added == "" && w.gpuState(one) != "lost" {
					t.Errorf("before the driver is loaded again GPU 1 is %s", w.gpuState(one))
				}
				w.load()
				if added == "new" {
					added = w.truth()[0].Identity.UUID
				}
				check := func(when string) {
					t.Helper()
					now := w.layouts()
					if now[zero] != was[zero] || !c.missing && now[one] != was[one] {
						t.Errorf("%s the layouts are %q, and were %q", when, now, was)
					}
					for id, want := range map[gpu.UUID]string{zero: c.zero, one: c.one} {
						if is := w.inventory(id); want == "" && is != "" || !strings.Contains(is, want) {
							t.Errorf("%s the condition of %s is %q", when, id, is)
						}
					}
					if s := w.gpuState(one); (s == "missing") != c.missing || w.gpuState(zero) != "ok" {
						t.Errorf("%s the GPUs are %s and %s", when, w.gpuState(zero), s)
					}
					if added != "" &&
						(!strings.Contains(w.inventory(added), "is new") || w.gpuState(added) != "ok" || strings.Contains(now[added], "on")) {
						t.Errorf("%s the new one is %s with %q: %q", when, w.gpuState(added), now[added], w.inventory(added))
					}
					if stale := w.staleRules(); len(stale) > 0 || len(w.violations) > 0 {
						t.Errorf("%s: %q, %q", when, stale, w.violations)
					}
					k, err := w.table.Submit(lease.Request{Tenant: "red", Grant: "zero", Admin: true})
					if err != nil {
						t.Fatalf("%s GPU 0 takes no lease: %v", when, err)
					}
					synctest.Wait()
					if l, ok := w.table.Get(k.ID()); !ok || !slices.Equal(l.Place.GPUs, []gpu.UUID{zero}) {
						t.Errorf("%s the lease is %+v", when, l)
					}
					if err := w.table.Ended(t.Context(), k.ID(), "done"); err != nil {
						t.Fatal(err)
					}
					writes := w.node.Counters().Writes
					w.waitIdle(nil)
					if n := w.node.Counters().Writes - writes; n > 0 {
						t.Errorf("%s another pass makes %d writes", when, n)
					}
				}
				check("after a load of the driver")
				w.end()
				w.startDaemon()
				w.waitIdle(nil)
				check("after a restart")

				res, op, refusal := w.apply(spec, "?allow-reset=1")
				switch {
				case refusal != nil:
					t.Errorf("the same spec is refused: %v", refusal)
				case c.again == "held" && (op != nil || res.Changed || len(res.Plan.Held) != 1 || res.Plan.Held[0].GPU != string(one)):
					t.Errorf("the same spec: %+v, %+v", res, op)
				case c.again == "changes" && (op == nil || op.State != "done"):
					t.Errorf("the same spec: %+v, %+v", res, op)
				}
				if c.again != "changes" {
					return
				}
				layouts := fmt.Sprint(w.namesOf(0), w.namesOf(1))
				if layouts != "[3g.20gb] [2g.10gb]" {
					t.Errorf("by their indexes the GPUs have %s", layouts)
				}
				w.end()
				w.startDaemon() // What the indexes meant is kept.
				w.waitIdle(nil)
				if now := fmt.Sprint(w.namesOf(0), w.namesOf(1)); now != layouts {
					t.Errorf("after a restart they have %s", now)
				}
				for _, cond := range w.statusNow().Node.Conditions {
					t.Errorf("at the end: %+v", cond)
				}
			})
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A driver that is not loaded, or of another version than its library, is a named state of every GPU. Nothing is written, access
// stays as it is, and when the driver answers everything is as before.
func TestDriverThatIsNotThere(t *testing.T) {
	for _, c := range []struct {
		name, state, says, hint string
		begin, end              func(t *testing.T, w *virtual)
	}{
		{
			"it is not loaded", "no-driver", "is not loaded", "modprobe nvidia",
			func(t *testing.T, w *virtual) { must(t, w.node.UnloadDriver(true)) },
			func(t *testing.T, w *virtual) { must(t, w.node.LoadDriver()); w.writeHost() },
		},
		{
			"its library is of another version", "mismatch", "different versions", "reboot",
			func(t *testing.T, w *virtual) {
				w.node.InstallDriver("580.105.08", nil)
				must(t, w.fakeWorker.Park(t.Context())) // The worker that uses the old library ends.
				w.fakeWorker.Unpark()
				w.observer.Invalidate()
			},
			func(t *testing.T, w *virtual) { must(t, w.node.ReloadDriver(true)); w.writeHost() },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				board := scenarios.Board{Model: "a100-40", MIG: true}
				w := newVirtual(t, nil, board, board)
				w.startDaemon()
				spec := twoGPUs("3g.20gb", "2g.10gb")
				if _, op, refusal := w.apply(spec, ""); refusal != nil || op == nil || op.State != "done" {
					t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
				}
				was, rules, writes := w.layouts(), w.rulesOf("one"), w.node.Counters().Writes
				c.begin(t, w)
				w.waitIdle(nil)
				for _, id := range w.ids {
					if s := w.gpuState(id); s != c.state {
						t.Errorf("%s is %s", id, s)
					}
				}
				if cond := w.statusNow().Node.Conditions; len(cond) != 1 || cond[0].Kind != "driver" ||
					!strings.Contains(cond[0].Message, c.says) ||
					!strings.Contains(cond[0].Hint, c.hint) {
					t.Errorf("the conditions are %+v", cond)
				}
				w.doctorFails(c.says)
				if _, _, refusal := w.apply(spec, ""); refusal == nil || refusal.Kind != api.KindUnavailable ||
					!strings.Contains(refusal.Hint, c.hint) {
					t.Errorf("an apply is answered with %v", refusal)
				}
				if now := w.rulesOf("one"); now != rules || rules == "" {
					t.Errorf("the slice allows %s, and allowed %s", now, rules)
				}
				if _, err := w.table.Submit(lease.Request{Tenant: "red", Grant: "zero", Admin: true}); err == nil {
					t.Error("a lease is placed")
				}
				if n := w.node.Counters().Writes; n != writes {
					t.Errorf("there are %d writes", n-writes)
				}
				c.end(t, w)
				w.waitIdle(nil)
				if now := w.layouts(); fmt.Sprint(now) != fmt.Sprint(was) {
					t.Errorf("the layouts are %q, and were %q", now, was)
				}
				if cond := w.statusNow().Node.Conditions; len(cond) > 0 || len(w.violations) > 0 {
					t.Errorf("at the end: %+v, %q", cond, w.violations)
				}
				var d api.Doctor
				if refusal := w.do(http.MethodGet, "/v1/doctor", "", &d); refusal != nil ||
					slices.ContainsFunc(d.Checks, func(k api.Check) bool { return k.Result == "fail" }) {
					t.Errorf("the doctor fails at the end: %v, %+v", refusal, d.Checks)
				}
			})
		})
	}
}

// A GPU that is missing is not one that never was: requests for it wait, or are refused with this reason, and a retry says since when
// it is missing. When the driver finds it again they are placed. One that the spec calls optional is the same for requests, but its
// absence is no condition, and changes no apply.
func TestRequestsWaitForAMissingGPU(t *testing.T) {
	for _, optional := range []bool{false, true} {
		t.Run(fmt.Sprintf("optional: %v", optional), func(t *testing.T) { requestsWaitForAMissingGPU(t, optional) })
	}
}

func requestsWaitForAMissingGPU(t *testing.T, optional bool) {
	synctest.Test(t, func(t *testing.T) {
		board := scenarios.Board{Model: "a100-40", MIG: true}
		w := newVirtual(t, nil, board, board)
		w.startDaemon()
		spec, missing := twoGPUs("3g.20gb", "2g.10gb"), "GPU 1 is missing: the driver does not find it"
		if optional {
			spec = strings.Replace(spec, "select: {index: 1}", "optional: true, select: {index: 1}", 1)
			missing += ", and the spec does without it"
		}
		if _, op, refusal := w.apply(spec, ""); refusal != nil || op == nil || op.State != "done" {
			t.Fatalf("it cannot be prepared: %v, %+v", refusal, op)
		}
		one, pci := w.ids[1], w.truth()[1].Identity.PCI
		must(t, w.node.RemoveGPU("1"))
		w.waitIdle(nil)
		if _, err := w.table.Submit(lease.Request{Tenant: "red", Grant: "one", Admin: true}); err == nil ||
			!strings.Contains(err.Error(), "GPU 1 is closed: ") {
			t.Errorf("while it is lost a request is answered with %v", err)
		}
		must(t, w.node.ReloadDriver(true))
		w.writeHost()
		if refusal := w.do(http.MethodPost, "/v1/gpus/1/retry", "", nil); refusal == nil ||
			!strings.Contains(refusal.Message, "it is missing") {
			t.Errorf("before the loop has seen that it is missing a retry is answered with %+v", refusal)
		}
		w.waitIdle(nil)
		since := time.Now().Local().Format(time.DateTime)
		check := func(when string) {
			t.Helper()
			_, err := w.table.Submit(lease.Request{Tenant: "red", Grant: "one", Admin: true})
			if e, ok := errors.AsType[*api.Error](
				err,
			); !ok || e.Kind != api.KindUnavailable || !strings.Contains(e.Message, missing) || !strings.Contains(e.Hint, "--wait") ||
				!strings.Contains(e.Hint, "gpushare status") {
				t.Errorf("%s a request is answered with %+v", when, err)
			}
			for _, name := range []string{"1", string(one)} {
				refusal := w.do(http.MethodPost, "/v1/gpus/"+name+"/retry", "", nil)
				if refusal == nil || refusal.Kind != api.KindUnavailable || !strings.Contains(refusal.Message, string(one)) ||
					!strings.Contains(refusal.Message, "it is missing: the driver has not found it since "+since) ||
					!strings.Contains(refusal.Hint, "lspci") {
					t.Errorf("%s a retry of %s is answered with %+v, and not with %s", when, name, refusal, since)
				}
			}
			if refusal := w.do(http.MethodPost, "/v1/gpus/7/retry", "", nil); refusal == nil || refusal.Kind != api.KindNotFound {
				t.Errorf("%s a retry of a GPU that never was is answered with %+v", when, refusal)
			}
		}
		check("after the load of the driver")
		time.Sleep(time.Hour) // In the time of the bubble.
		w.end()
		w.startDaemon()
		w.waitIdle(nil)
		check("after a restart")
		if is := w.inventory(one); (is == "") != optional || w.gpuState(one) != "missing" {
			t.Errorf("it is %s, with the condition %q", w.gpuState(one), is)
		}
		if a, op, refusal := w.apply(spec, ""); refusal != nil || op != nil || a.Changed || (len(a.Plan.Held) == 0) != optional {
			t.Errorf("the same spec again: %v, %+v, %+v", refusal, a, op)
		}
		check("after the same spec")

		wait := time.Duration(0)
		k, err := w.table.Submit(lease.Request{Tenant: "red", Grant: "one", Admin: true, Wait: &wait})
		if err != nil {
			t.Fatalf("a request that waits is refused: %v", err)
		}
		defer k.Cancel()
		if u, err := k.Next(t.Context()); err != nil || u.Placed || !strings.Contains(u.Lease.Waiting, missing) {
			t.Errorf("it waits with %+v, %v", u, err)
		}
		m, err := nodefile.Model("a100-40")
		must(t, err)
		must(t, w.node.AddGPU(gpusim.GPUConfig{Model: m, PCI: pci, UUID: one, MIG: true}))
		w.load()
		for {
			u, err := k.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if u.Placed {
				break
			}
		}
		if l, ok := w.table.Get(k.ID()); !ok || !slices.Equal(l.Place.GPUs, []gpu.UUID{one}) {
			t.Errorf("the lease is %+v", l)
		}
		if n := len(w.statusNow().Node.Conditions); n > 0 {
			t.Errorf("at the end there are %d conditions", n)
		}
	})
}
