package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/test/enumeration"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// change is a plan for two GPUs with a unit that is stopped around it.
func change() *engine.Record {
	steps := append(gpuSteps("A", 1), gpuSteps("B", 11)...)
	steps = append(steps, set(20, "", step.RevokeAccess, "unit", "up", "down"), set(21, "", step.GrantAccess, "unit", "down", "up"))
	return &engine.Record{ID: "c1", Steps: steps, Authority: engine.Authority{Force: true}}
}

func TestRun(t *testing.T) {
	type states = map[string]engine.State
	for name, c := range map[string]struct {
		inject  func(*fakeNode)
		want    states
		a, b    string // the state of the GPUs afterwards
		unit    string
		reasons map[string]string
	}{
		"success": {want: states{"A": engine.Reached, "B": engine.Reached, "": engine.Reached}, a: "new", b: "new", unit: "up"},
		"a step fails": {
			inject: func(w *fakeNode) { w.broken["do A/hw2"] = true },
			want:   states{"A": engine.Undone, "B": engine.Reached, "": engine.Reached}, a: "old", b: "new", unit: "up",
			reasons: map[string]string{"A": `cannot set A/hw2 to "new": broken`},
		},
		"the last step fails": {
			inject: func(w *fakeNode) { w.broken["do A/access"] = true; w.values["A/access"] = "" },
			want:   states{"A": engine.Undone, "B": engine.Reached, "": engine.Reached}, a: "old", b: "new", unit: "up",
			reasons: map[string]string{"A": `cannot set A/access to "new": broken`},
		},
		"a step lies": {
			inject: func(w *fakeNode) { w.lying["A/hw1"] = true },
			want:   states{"A": engine.Undone, "B": engine.Reached, "": engine.Reached}, a: "old", b: "new", unit: "up",
			reasons: map[string]string{"A": `cannot set A/hw1 to "new": the call succeeded, but nothing has changed`},
		},
		"a step needs a boot": { // Nothing is undone, and access stays revoked.
			inject: func(w *fakeNode) { w.pending["A/hw2"] = true },
			want:   states{"A": engine.Deferred, "B": engine.Reached, "": engine.Reached}, a: "", b: "new", unit: "up",
			reasons: map[string]string{"A": "it is kept: only a boot of the host can finish it"},
		},
		"an answer is late": {
			inject: func(w *fakeNode) { w.late["A/hw1"] = true },
			want:   states{"A": engine.Reached, "B": engine.Reached, "": engine.Reached}, a: "new", b: "new", unit: "up",
		},
		"undo fails, too": {
			inject: func(w *fakeNode) { w.broken["do A/hw2"] = true; w.broken["undo A/hw1"] = true },
			want:   states{"A": engine.Held, "B": engine.Reached, "": engine.Reached}, a: "", b: "new", unit: "up",
			reasons: map[string]string{"A": `cannot set A/hw2 to "new": broken; and it could not be undone: undo "set A/hw1 to \"new\"": broken`},
		},
		"the node fails first": {
			inject: func(w *fakeNode) { w.broken["do unit"] = true },
			want:   states{"A": engine.Undone, "B": engine.Undone, "": engine.Undone}, a: "old", b: "old", unit: "up",
			reasons: map[string]string{"": `cannot set unit to "down": broken`, "A": `not begun: cannot set unit to "down": broken`, "B": `not begun: cannot set unit to "down": broken`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFakeNode("A", "B")
			if c.inject != nil {
				c.inject(w)
			}
			out := w.engine().Run(t.Context(), change(), engine.Hooks{})
			if d := cmp.Diff(c.want, statesOf(out)); d != "" {
				t.Errorf("outcome (-want +got):\n%s", d)
			}
			for g, l := range out {
				if l.Reason != c.reasons[g] {
					t.Errorf("the reason of %q is %q, want %q", g, l.Reason, c.reasons[g])
				}
			}
			if w.side("A") != c.a || w.side("B") != c.b || w.get("unit") != c.unit || w.wrong != nil {
				t.Errorf("the node is %v, %v", w.snapshot(), w.wrong)
			}
		})
	}
}

func statesOf(o engine.Outcome) map[string]engine.State {
	m := map[string]engine.State{}
	for g, l := range o {
		m[g] = l.State
	}
	return m
}

// TestHeldKeepsAccessRevoked: where the hardware is neither old nor new, no tenant has access.
func TestHeldKeepsAccessRevoked(t *testing.T) {
	w := newFakeNode("A")
	w.broken["do A/hw2"], w.broken["undo A/hw2"] = true, true
	w.engine().Run(t.Context(), &engine.Record{Steps: gpuSteps("A", 1)}, engine.Hooks{})
	if got := w.get("A/access"); got != "" {
		t.Errorf("%q has access", got)
	}
}

func TestRunTwiceWritesOnce(t *testing.T) {
	w := newFakeNode("A")
	w.values["unit"] = "up"
	steps := []step.Step{set(1, "A", step.Change, "A/hw1", "old", "new"), set(2, "", step.RevokeAccess, "unit", "down", "up")}
	w.values["A/access"] = ""
	for range 2 {
		if out := w.engine().Converge(t.Context(), steps, engine.Hooks{}); out.State() != engine.Reached {
			t.Fatal(out)
		}
	}
	if w.writes != 1 {
		t.Errorf("it wrote %d times", w.writes)
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		steps     []step.Step
		authority engine.Authority
		want      string
	}{
		"kind without a handler": {steps: []step.Step{{ID: 1, Kind: "x", GPU: "A"}}, want: `internal error: step 1 is of kind "x", which has no handler`},
		"running, no authority":  {steps: []step.Step{{ID: 1, Kind: "node.set", GPU: "A", Text: "t", Disruption: step.Running}}, want: "internal error: step 1 (t) would stop processes, and the change has no authority"},
		"running, and authority": {steps: []step.Step{func() step.Step {
			s := set(1, "A", step.Change, "unit", "up", "down")
			s.Disruption = step.Running
			return s
		}()}, authority: engine.Authority{Force: true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFakeNode()
			for _, out := range []engine.Outcome{
				w.engine().Run(t.Context(), &engine.Record{Steps: c.steps, Authority: c.authority}, engine.Hooks{}),
				w.engine().Resume(t.Context(), &engine.Record{Steps: c.steps, Authority: c.authority}, store.Epoch{}, engine.Hooks{}),
			} {
				if out["A"].Reason != c.want || c.want != "" && (w.writes > 0 || out["A"].State != engine.Undone) {
					t.Errorf("it returns %+v", out)
				}
			}
		})
	}
}

// TestKillAtEveryBoundary cuts the power at every boundary of a change, and also at boundaries of its resumption, and checks
// the final state.
func TestKillAtEveryBoundary(t *testing.T) {
	for name, c := range map[string]struct {
		inject func(*fakeNode)
		a      string
		held   bool
	}{
		"success":         {a: "new"},
		"a step fails":    {inject: func(w *fakeNode) { w.broken["do A/hw2"] = true }, a: "old"},
		"a step lies":     {inject: func(w *fakeNode) { w.lying["A/hw2"] = true }, a: "old"},
		"undo fails, too": {inject: func(w *fakeNode) { w.broken["do A/hw2"] = true; w.broken["undo A/hw2"] = true }, held: true},
	} {
		t.Run(name, func(t *testing.T) {
			second := []int{0}
			if !enumeration.Sampled() {
				for n := 1; n < 60; n += 8 {
					second = append(second, n)
				}
			}
			kills := 0
			for first, cut := 1, true; cut; first++ {
				for _, again := range second {
					w := newFakeNode("A", "B")
					if c.inject != nil {
						c.inject(w)
					}
					// What is on disk is what another process reads.
					saved, err := json.Marshal(change())
					if err != nil {
						t.Fatal(err)
					}
					read := func() *engine.Record {
						r := &engine.Record{}
						if err := json.Unmarshal(saved, r); err != nil {
							t.Fatal(err)
						}
						return r
					}
					ctx, off := w.powerOn(t.Context(), first)
					out := w.engine().Run(ctx, read(), engine.Hooks{})
					off()
					if cut = w.down; cut {
						kills++
						if s := out.State(); s != engine.Interrupted && s != engine.Reached && s != engine.Held && s != engine.Undone {
							t.Fatalf("cut at %d: %+v", first, out)
						}
					}
					for _, n := range []int{again, 0} {
						ctx, off := w.powerOn(t.Context(), n)
						out = w.engine().Resume(ctx, read(), store.Epoch{}, engine.Hooks{})
						off()
					}
					if c.held {
						if out["A"].State != engine.Held || w.get("A/access") != "" {
							t.Fatalf("cut at %d and %d: %+v, %v", first, again, out, w.snapshot())
						}
					} else if w.side("A") != c.a {
						t.Fatalf("cut at %d and %d: A is %v, %+v", first, again, w.snapshot(), out)
					}
					if w.side("B") != "new" || w.get("unit") != "up" || w.wrong != nil {
						t.Fatalf("cut at %d and %d: %v, %v", first, again, w.snapshot(), w.wrong)
					}
					if s := out.State(); s == engine.Interrupted {
						t.Fatalf("cut at %d and %d: ended %+v", first, again, out)
					}
				}
			}
			if kills < 30 {
				t.Errorf("only %d kills were tried", kills)
			}
		})
	}
}

// TestRandomFaults runs random plans through random faults and kills.
func TestRandomFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpus := []string{"A", "B", "C"}[:rapid.IntRange(1, 3).Draw(t, "gpus")]
		w := newFakeNode(gpus...)
		r := &engine.Record{}
		var keys []string
		for i, g := range gpus {
			r.Steps = append(r.Steps, gpuSteps(g, 10*i)...)
			keys = append(keys, g+"/hw1", g+"/hw2")
		}
		for _, k := range rapid.SliceOfN(rapid.SampledFrom(keys), 0, 3).Draw(t, "broken") {
			w.broken["do "+k] = true
		}
		for _, k := range rapid.SliceOfN(rapid.SampledFrom(keys), 0, 2).Draw(t, "late") {
			w.late[k] = true
		}
		var out engine.Outcome
		for _, cut := range append(rapid.SliceOfN(rapid.IntRange(1, 60), 0, 4).Draw(t, "cuts"), 0) {
			ctx, off := w.powerOn(context.Background(), cut)
			out = w.engine().Resume(ctx, r, store.Epoch{}, engine.Hooks{})
			off()
		}
		for _, g := range gpus {
			want := "new"
			for k := range w.broken {
				if strings.HasPrefix(k, "do "+g) {
					want = "old"
				}
			}
			if got := w.side(g); got != want {
				t.Fatalf("%s is %q, want %q: %v, %+v", g, got, want, w.snapshot(), out)
			}
		}
		if w.wrong != nil {
			t.Fatal(w.wrong)
		}
	})
}

func TestResumeOfACompleteChangeWritesNothing(t *testing.T) {
	w := newFakeNode("A", "B")
	r := change()
	if out := w.engine().Run(t.Context(), r, engine.Hooks{}); out.State() != engine.Reached {
		t.Fatal(out)
	}
	writes := w.writes
	if out := w.engine().Resume(t.Context(), r, store.Epoch{}, engine.Hooks{}); out.State() != engine.Reached {
		t.Fatal(out)
	}
	// The unit is the exception: whether it was stopped before cannot be observed.
	if w.writes > writes+2 {
		t.Errorf("%d more writes", w.writes-writes)
	}
}

func TestResumeInAnotherEpoch(t *testing.T) {
	then := store.Epoch{Boot: "b1", Driver: "d1", Resets: map[gpu.UUID]uint64{"A": 1}}
	record := func() *engine.Record {
		mig := func(id int, g string) step.Step {
			s := set(id, g, step.Change, g+"/hw1", "old", "new")
			s.Kind = "mig.create"
			return s
		}
		unit := set(5, "", step.RevokeAccess, "unit", "up", "down")
		unit.Kind = "unit.stop"
		return &engine.Record{
			Epoch: then,
			Steps: []step.Step{mig(1, "A"), mig(2, "B"), set(3, "A", step.Change, "A/hw2", "old", "new"), unit},
		}
	}
	for name, c := range map[string]struct {
		now     store.Epoch
		dropped map[string]int
	}{
		"the same":     {then, map[string]int{}},
		"a boot":       {store.Epoch{Boot: "b2", Driver: "d2"}, map[string]int{"": 1, "A": 1, "B": 1}},
		"a driver":     {store.Epoch{Boot: "b1", Driver: "d2", Resets: then.Resets}, map[string]int{"A": 1, "B": 1}},
		"a GPU reset":  {store.Epoch{Boot: "b1", Driver: "d1", Resets: map[gpu.UUID]uint64{"A": 2}}, map[string]int{"A": 1}},
		"others reset": {store.Epoch{Boot: "b1", Driver: "d1", Resets: map[gpu.UUID]uint64{"A": 1, "C": 9}}, map[string]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFakeNode("A", "B")
			w.values["A/access"], w.values["B/access"] = "", ""
			out := w.engine().Resume(t.Context(), record(), c.now, engine.Hooks{})
			if out.State() != engine.Reached {
				t.Fatal(out)
			}
			dropped := map[string]int{}
			for g, l := range out {
				if l.Dropped > 0 {
					dropped[g] = l.Dropped
				}
				want := "new"
				if l.Dropped > 0 {
					want = "old"
				}
				if g != "" && w.get(g+"/hw1") != want {
					t.Errorf("%s/hw1 is %q", g, w.get(g+"/hw1"))
				}
			}
			if d := cmp.Diff(c.dropped, dropped); d != "" {
				t.Errorf("dropped (-want +got):\n%s", d)
			}
			if w.get("A/hw2") != "new" {
				t.Error("a permanent step was dropped")
			}
		})
	}
}

func TestPrepareGrant(t *testing.T) {
	w := newFakeNode("A")
	hooks := engine.Hooks{PrepareGrant: func(_ context.Context, s step.Step) (step.Step, bool, error) {
		s.Args = step.Must(args{"A/access", "observed with " + w.get("A/hw1")})
		return s, true, nil
	}}
	if out := w.engine().Run(t.Context(), &engine.Record{Steps: gpuSteps("A", 1)}, hooks); out.State() != engine.Reached ||
		w.get("A/access") != "observed with new" {
		t.Errorf("%+v, %v", out, w.snapshot())
	}
	w = newFakeNode("A")
	hooks.PrepareGrant = func(_ context.Context, s step.Step) (step.Step, bool, error) { return s, false, nil }
	if out := w.engine().Run(t.Context(), &engine.Record{Steps: gpuSteps("A", 1)}, hooks); out.State() != engine.Reached ||
		w.get("A/access") != "" {
		t.Errorf("%+v, %v", out, w.snapshot())
	}
	w = newFakeNode("A")
	hooks.PrepareGrant = func(_ context.Context, s step.Step) (step.Step, bool, error) { return s, false, errBroken }
	out := w.engine().Run(t.Context(), &engine.Record{Steps: gpuSteps("A", 1)}, hooks)
	if out["A"].State != engine.Undone || w.side("A") != "old" {
		t.Errorf("%+v, %v", out, w.snapshot())
	}
}

func TestProgress(t *testing.T) {
	w := newFakeNode("A")
	w.broken["do A/hw2"] = true
	var reported []string
	out := w.engine().Run(t.Context(), &engine.Record{Steps: gpuSteps("A", 1)}, engine.Hooks{Progress: func(p engine.Progress) {
		reported = append(reported, fmt.Sprint(p.Step, " ", p.State))
	}})
	want := []string{
		"4 doing",
		"4 done",
		"2 doing",
		"2 done",
		"3 doing",
		"3 failed",
		"3 undoing",
		"3 undone",
		"2 undoing",
		"2 undone",
		"4 undoing",
		"4 undone",
	}
	if d := cmp.Diff(want, reported); d != "" || out["A"].Step != 3 {
		t.Errorf("reported (-want +got):\n%s\n%+v", d, out)
	}
}

// A step may say what it waits for while it is being done.
func TestProgressOfAWait(t *testing.T) {
	w := &waiting{}
	var reported []string
	(&engine.Engine{Handlers: engine.Handlers{"wait": w}}).Run(
		t.Context(),
		&engine.Record{Steps: []step.Step{{ID: 1, Kind: "wait", GPU: "A"}}},
		engine.Hooks{Progress: func(p engine.Progress) {
			reported = append(reported, fmt.Sprint(p.State, " ", p.WaitsFor))
		}},
	)
	step.ReportWait(w.ctx, "something after its end")
	if d := cmp.Diff([]string{"doing ", "doing a process", "done "}, reported); d != "" {
		t.Errorf("reported (-want +got):\n%s", d)
	}
}

// waiting is a handler that waits for a process.
type waiting struct{ ctx context.Context }

func (w *waiting) Applied(context.Context, step.Step) (bool, error) { return w.ctx != nil, nil }

func (w *waiting) Do(ctx context.Context, _ step.Step) error {
	w.ctx = ctx
	step.ReportWait(ctx, "a process")
	return nil
}

func (w *waiting) Undo(context.Context, step.Step) error { return nil }

// slow is a handler whose steps wait until they are released or their deadline ends.
type slow struct {
	begun chan string
	free  chan struct{}
	done  chan bool
}

func (s slow) Applied(context.Context, step.Step) (bool, error) {
	select {
	case <-s.done:
		return true, nil
	default:
		return false, nil
	}
}

func (s slow) Do(ctx context.Context, st step.Step) error {
	s.begun <- st.GPU
	select {
	case <-s.free:
		close(s.done)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slow) Undo(context.Context, step.Step) error { return nil }

func newSlow() slow {
	return slow{begun: make(chan string, 9), free: make(chan struct{}), done: make(chan bool)}
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		e := &engine.Engine{Handlers: engine.Handlers{"slow": s}, Timeout: func(step.Step) time.Duration { return 30 * time.Second }}
		began := time.Now()
		out := e.Run(t.Context(), &engine.Record{Steps: []step.Step{{ID: 1, Kind: "slow", GPU: "A", Text: "wait"}}}, engine.Hooks{})
		if out["A"].State != engine.Undone || !strings.Contains(out["A"].Reason, "deadline") || time.Since(began) != 30*time.Second {
			t.Errorf("after %v: %+v", time.Since(began), out)
		}
	})
}

func TestStopLetsTheStepFinish(t *testing.T) {
	for name, free := range map[string]bool{"in time": true, "not in time": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSlow()
				e := &engine.Engine{Handlers: engine.Handlers{"slow": s}, Grace: 5 * time.Second}
				ctx, cancel := context.WithCancel(t.Context())
				record := &engine.Record{
					Steps: []step.Step{{ID: 1, Kind: "slow", GPU: "A"}, {ID: 2, Kind: "slow", GPU: "", Phase: step.GrantAccess}},
				}
				ended := make(chan engine.Outcome)
				go func() { ended <- e.Run(ctx, record, engine.Hooks{}) }()
				<-s.begun
				began := time.Now()
				cancel()
				synctest.Wait()
				if free {
					close(s.free)
				}
				out := <-ended
				if out.State() != engine.Interrupted || len(s.begun) != 0 {
					t.Errorf("it ended as %+v", out)
				}
				if free != (time.Since(began) == 0) || time.Since(began) > 5*time.Second {
					t.Errorf("it needed %v", time.Since(began))
				}
				if free && out["A"].State != engine.Reached {
					t.Errorf("the step that finished is %+v", out["A"])
				}
			})
		})
	}
}

// TestGPUsInParallel: no GPU waits for another one.
func TestGPUsInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handlers := engine.Handlers{}
		var steps []step.Step
		all := map[string]slow{}
		for i := range 8 {
			g := fmt.Sprint("GPU-", i)
			all[g] = newSlow()
			handlers[g] = all[g]
			steps = append(steps, step.Step{ID: i, Kind: g, GPU: g, Phase: step.Change})
		}
		e := &engine.Engine{Handlers: handlers}
		ended := make(chan engine.Outcome)
		go func() { ended <- e.Run(t.Context(), &engine.Record{Steps: steps}, engine.Hooks{}) }()
		for _, s := range all {
			<-s.begun
		}
		for _, s := range all {
			close(s.free)
		}
		if out := <-ended; out.State() != engine.Reached || len(out) != 8 {
			t.Errorf("it ended as %+v", out)
		}
	})
}
