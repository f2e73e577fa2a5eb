package mig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// fake is a driver of one GPU with the rules that matter here: placements, overlap, use, and a mode that may need a reset.
// It counts the calls that change something, and fails for good before or within call number dieAt.
type fake struct {
	p              gpu.Profiles
	mig            gpu.MIGState
	instances      []gpu.Instance
	processes      []gpu.Process
	writes         int
	dieAt          int  // 0: never
	half           bool // die after the GPU instance, before its compute instances
	transientUsers int  // how many more mode changes find the GPU in use by an unnamed process
}

var errDied = errors.New("died")

func (f *fake) countWrite() error {
	f.writes++
	if f.dieAt != 0 && f.writes == f.dieAt && !f.half {
		return errDied
	}
	return nil
}

func (f *fake) diesHalfway() bool { return f.half && f.writes == f.dieAt }

func (f *fake) Snapshot(context.Context, gpu.UUID) (gpu.Snapshot, error) {
	s := gpu.Snapshot{MIG: f.mig, Processes: slices.Clone(f.processes)}
	for _, in := range f.instances {
		in.Compute = slices.Clone(in.Compute)
		s.Instances = append(s.Instances, in)
	}
	return s, nil
}

func (f *fake) SetMIGMode(_ context.Context, _ gpu.UUID, on bool) (gpu.ModeChange, error) {
	if err := f.countWrite(); err != nil {
		return gpu.ModeChange{}, err
	}
	f.mig.Pending = on
	c := gpu.ModeChange{Pending: on}
	switch {
	case f.mig.Current == on:
	case len(f.processes) != 0:
		c.Activation = gpu.ErrInUse
	case f.transientUsers > 0:
		f.transientUsers--
		c.Activation = gpu.ErrInUse
	case *f.mig.Resetless:
		f.mig.Current = on
	default:
		c.Activation = gpu.ErrResetRequired
	}
	c.Current = f.mig.Current
	return c, nil
}

func (f *fake) reset(context.Context, gpu.UUID) error {
	f.mig.Current, f.instances = f.mig.Pending, nil
	return nil
}

func (f *fake) CreateInstance(_ context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error) {
	refuse := func(why error) (gpu.Instance, error) {
		return gpu.Instance{}, &gpu.Error{Op: "create instance", GPU: id, Code: 23, Err: why}
	}
	if err := f.countWrite(); err != nil {
		return gpu.Instance{}, err
	}
	i := slices.IndexFunc(f.p.GI, func(q gpu.Profile) bool { return q.ID == want.ProfileID })
	if !f.mig.Current || i < 0 || !slices.Contains(f.p.GI[i].Placements, want.Placement) {
		return refuse(gpu.ErrInvalid)
	}
	for _, in := range f.instances {
		if in.Placement.Overlaps(want.Placement) {
			return refuse(gpu.ErrInsufficientResources)
		}
	}
	gi := 100 + want.Placement.Start + 50*want.Placement.Size
	f.instances = append(f.instances, gpu.Instance{ID: gi, ProfileID: want.ProfileID, Placement: want.Placement})
	if f.diesHalfway() {
		return gpu.Instance{}, errDied
	}
	if len(want.Compute) == 0 {
		want.Compute = []gpu.NewCompute{{Slices: f.p.GI[i].Slices}}
	}
	f.writes-- // one call
	return f.CompleteInstance(context.Background(), id, gi, want.Compute)
}

func (f *fake) CompleteInstance(_ context.Context, _ gpu.UUID, gi uint32, compute []gpu.NewCompute) (gpu.Instance, error) {
	if err := f.countWrite(); err != nil {
		return gpu.Instance{}, err
	}
	in := &f.instances[slices.IndexFunc(f.instances, func(in gpu.Instance) bool { return in.ID == gi })]
	if len(compute) == 0 {
		compute = []gpu.NewCompute{
			{Slices: f.p.GI[slices.IndexFunc(f.p.GI, func(q gpu.Profile) bool { return q.ID == in.ProfileID })].Slices},
		}
	}
	for _, c := range gpu.MissingCompute(compute, in.Compute) {
		place := gpu.Placement{Start: uint32(len(in.Compute)), Size: c.Slices}
		if c.Placement != nil {
			place = *c.Placement
		}
		in.Compute = append(
			in.Compute,
			gpu.ComputeInstance{ID: uint32(len(in.Compute)), Placement: place, UUID: gpu.UUID(fmt.Sprintf("MIG-%d-%d", gi, place.Start))},
		)
	}
	return *in, nil
}

func (f *fake) DestroyInstance(_ context.Context, id gpu.UUID, gi uint32) error {
	if err := f.countWrite(); err != nil {
		return err
	}
	i := slices.IndexFunc(f.instances, func(in gpu.Instance) bool { return in.ID == gi })
	if slices.ContainsFunc(f.processes, func(p gpu.Process) bool { return *p.GI == gi }) {
		return &gpu.Error{Op: "destroy instance", GPU: id, Code: 19, Err: gpu.ErrInUse}
	}
	f.instances[i].Compute = nil
	if f.diesHalfway() {
		return errDied
	}
	f.instances = slices.Delete(f.instances, i, i+1)
	return nil
}

func newFake(p gpu.Profiles, present []Present) *fake {
	yes := true
	f := &fake{p: p, mig: gpu.MIGState{Capable: true, Current: true, Pending: true, Resetless: &yes}}
	for _, b := range present {
		f.instances = append(f.instances, b.Instance)
	}
	return f
}

func (f *fake) layout() Layout { return Record(f.p, f.instances) }

// reread encodes and decodes steps, as a restart does.
func reread(t testing.TB, steps []step.Step) []step.Step {
	t.Helper()
	b, err := json.Marshal(steps)
	if err != nil {
		t.Fatal(err)
	}
	var out []step.Step
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// apply does the steps that are not applied yet, as the engine does.
func apply(t testing.TB, h *Handler, steps []step.Step) (err error) {
	t.Helper()
	for _, s := range steps {
		done, err := h.Applied(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			continue
		}
		if err := h.Do(t.Context(), s); err != nil {
			return err
		}
		if done, err := h.Applied(t.Context(), s); err != nil || !done {
			t.Fatalf("%s is not applied after Do: %v", s.Text, err)
		}
	}
	return nil
}

// TestInterruptedAnywhere interrupts the handler before and within every write of a change. Another process that continues
// reaches the target; one that undoes restores the old layout with its placements.
func TestInterruptedAnywhere(t *testing.T) {
	all := states(a100())
	rapid.Check(t, func(rt *rapid.T) {
		p := a100()
		s := idle(rapid.SampledFrom(all).Draw(rt, "present"))
		present := presentOf(p, s)
		for i := range present {
			if present[i].ProfileID == 9 && rapid.Bool().Draw(rt, "split") {
				present[i].Compute = []gpu.ComputeInstance{
					{Placement: gpu.Placement{Start: 0, Size: 1}},
					{ID: 1, Placement: gpu.Placement{Start: 1, Size: 2}},
				}
			}
		}
		m := map[int]int{}
		for _, x := range rapid.SampledFrom(all).Draw(rt, "target") {
			m[x.profile]++
		}
		r, err := Plan(p, present, requestsFor(p, m), Options{})
		if err != nil {
			rt.Fatal(err)
		}
		steps := reread(t, r.Steps("GPU-1"))
		f := newFake(p, present)
		before := f.layout()
		f.dieAt, f.half = rapid.IntRange(0, len(steps)).Draw(rt, "die at"), rapid.Bool().Draw(rt, "half")
		h := &Handler{Driver: f}
		err = apply(t, h, steps)
		if died := f.dieAt != 0; died != errors.Is(err, errDied) {
			rt.Fatalf("got %v", err)
		}
		back := rapid.Bool().Draw(rt, "undo")
		f.dieAt = 0
		if back {
			for _, s := range slices.Backward(steps) {
				if err := h.Undo(t.Context(), s); err != nil {
					rt.Fatal(err)
				}
			}
			if got := f.layout(); !SameLayout(got, before) {
				rt.Fatalf("undone to %v, before it was %v", got, before)
			}
		} else {
			if err := apply(t, h, steps); err != nil {
				rt.Fatal(err)
			}
			again := present[:0:0]
			for _, in := range f.instances {
				again = append(again, Present{Instance: in})
			}
			if r, err := Plan(p, again, requestsFor(p, m), Options{}); err != nil || !r.Empty() {
				rt.Fatalf("the second plan is %+v, %v", r, err)
			}
		}
		writes := f.writes
		if back {
			return
		}
		if err := apply(t, h, steps); err != nil || f.writes != writes {
			rt.Fatalf("repeated: %v, %d more writes", err, f.writes-writes)
		}
	})
}

func TestRestoreIsExact(t *testing.T) {
	p := a100()
	present := presentFrom(t, p, "3g.20gb@0", "1g.5gb@5", "1g.5gb+me@6")
	present[0].Compute = []gpu.ComputeInstance{
		{Placement: gpu.Placement{Start: 1, Size: 2}},
		{ID: 1, Placement: gpu.Placement{Start: 0, Size: 1}},
	}
	recorded := newFake(p, present).layout()
	b, err := json.Marshal(recorded)
	if err != nil {
		t.Fatal(err)
	}
	var read Layout
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	r, err := Restore(p, nil, read, Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(p, nil)
	if err := apply(t, &Handler{Driver: f}, reread(t, r.Steps("GPU-1"))); err != nil {
		t.Fatal(err)
	}
	if got := f.layout(); !SameLayout(got, recorded) {
		t.Errorf("restored %v, recorded %v", got, recorded)
	}
	if r, err := Restore(p, present, read, Options{}); err != nil || !r.Empty() {
		t.Errorf("restoring the existing layout gives %+v, %v", r, err)
	}
}

func TestInUseErrorNamesProcesses(t *testing.T) {
	p := a100()
	present := presentFrom(t, p, "3g.20gb@4")
	f := newFake(p, present)
	f.processes = []gpu.Process{{PID: 4711, GI: &f.instances[0].ID}}
	r, err := Plan(p, present, Requests("7g.40gb"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = apply(t, &Handler{Driver: f}, r.Steps("GPU-1"))
	if want := "cannot destroy 3g.20gb at 4 on GPU-1: in use by pid 4711"; err == nil || err.Error() != want ||
		!errors.Is(err, gpu.ErrInUse) {
		t.Errorf("got %v, want %s", err, want)
	}
	if f.writes != 0 || len(f.instances[0].Compute) != 1 {
		t.Errorf("%d writes, instance %+v", f.writes, f.instances[0])
	}
}

func TestDriverErrorIsWrappedOnce(t *testing.T) {
	f := newFake(a100(), presentFrom(t, a100(), "7g.40gb@0"))
	r, err := Plan(f.p, nil, Requests("1g.5gb"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = (&Handler{Driver: f}).Do(t.Context(), r.Steps("GPU-1")[0])
	if want := "cannot create 1g.5gb at 6 on GPU-1: insufficient resources (NVML code 23)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestMode(t *testing.T) {
	yes, no := true, false
	for _, tc := range []struct {
		name    string
		state   gpu.MIGState
		on      bool
		inUseBy []step.Subject
		o       Options
		want    *Mode
		err     string
		is      error
	}{
		{name: "as it is", state: gpu.MIGState{Capable: true, Current: true, Pending: true}, on: true},
		{name: "off without MIG", state: gpu.MIGState{}, on: false},
		{name: "on without MIG", state: gpu.MIGState{}, on: true, err: "this GPU does not support MIG"},
		{name: "resetless", state: gpu.MIGState{Capable: true, Resetless: &yes}, on: true, want: &Mode{On: true}},
		{name: "a reset that is not allowed", state: gpu.MIGState{Capable: true, Resetless: &no}, on: true, err: "cannot turn on MIG mode: this GPU must be reset for it; add --allow-reset to allow that", is: gpu.ErrResetRequired},
		{name: "an unknown need for a reset", state: gpu.MIGState{Capable: true}, on: true, err: "must be reset"},
		{name: "a reset allowed", state: gpu.MIGState{Capable: true, Resetless: &no}, on: true, o: Options{AllowReset: true}, want: &Mode{On: true, Reset: true}},
		{name: "in use", state: gpu.MIGState{Capable: true, Resetless: &yes}, on: true, inUseBy: []step.Subject{step.ProcessOf(1, "python")}, err: "in use by pid 1 (python)", is: gpu.ErrInUse},
		{name: "in use, with force", state: gpu.MIGState{Capable: true, Resetless: &yes}, on: true, inUseBy: []step.Subject{step.ProcessOf(1, "python")}, o: Options{Force: true}, want: &Mode{On: true, Stops: []step.Subject{step.ProcessOf(1, "python")}}},
		{name: "a pending change is cancelled", state: gpu.MIGState{Capable: true, Pending: true, Resetless: &no}, on: false, inUseBy: []step.Subject{step.ProcessOf(1, "")}, want: &Mode{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := PlanMode(tc.state, tc.on, tc.inUseBy, tc.o)
			if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) || tc.err == "" && err != nil ||
				tc.is != nil && !errors.Is(err, tc.is) {
				t.Fatalf("got %v, want %q", err, tc.err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestModeStep(t *testing.T) {
	no := false
	off := func() *fake {
		f := newFake(a30(), nil)
		f.mig = gpu.MIGState{Capable: true, Resetless: &no}
		return f
	}
	steps := reread(t, Result{Mode: &Mode{On: true, Reset: true}}.Steps("GPU-1"))
	t.Run("with a reset and back", func(t *testing.T) {
		f := off()
		h := &Handler{Driver: f, Reset: f.reset}
		if err := apply(t, h, steps); err != nil || !f.mig.Current {
			t.Fatalf("mode %+v, %v", f.mig, err)
		}
		if err := h.Undo(t.Context(), steps[0]); err != nil || f.mig.Current || f.mig.Pending {
			t.Errorf("undone to %+v, %v", f.mig, err)
		}
	})
	t.Run("pending without a reset", func(t *testing.T) {
		f := off()
		err := apply(t, &Handler{Driver: f}, steps)
		if !errors.Is(err, gpu.ErrResetRequired) || !errors.Is(err, step.ErrAfterBoot) || !f.mig.Pending ||
			!strings.Contains(err.Error(), "is turned on by the next boot of the host") {
			t.Fatal(err)
		}
		if err := (&Handler{Driver: f}).Undo(t.Context(), steps[0]); err != nil || f.mig.Pending {
			t.Errorf("undone to %+v, %v", f.mig, err)
		}
	})
	t.Run("in use", func(t *testing.T) {
		f := off()
		f.processes = []gpu.Process{{PID: 12}}
		err := apply(t, &Handler{Driver: f, Reset: f.reset}, steps)
		if want := "cannot turn on MIG mode on GPU-1: in use by pid 12"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if f.writes != 1 {
			t.Errorf("%d attempts although the user of the GPU is named", f.writes)
		}
	})
	// An unnamed process has the GPU open for a moment: a monitor, a worker that ends.
	for uses, active := range map[int]bool{2: true, 1000: false} {
		t.Run(fmt.Sprintf("%d transient uses", uses), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := off()
				f.mig.Resetless, f.transientUsers = new(true), uses
				began := time.Now()
				err := apply(t, &Handler{Driver: f}, steps)
				if active != (err == nil) || active != f.mig.Current || !active && !errors.Is(err, gpu.ErrInUse) {
					t.Errorf("mode %+v, %v", f.mig, err)
				}
				if duration := time.Since(began); duration > transientUse {
					t.Errorf("the change lasted %v", duration)
				}
			})
		})
	}
}

func TestStepsInOrder(t *testing.T) {
	p := a100()
	r, err := Plan(p, presentFrom(t, p, "1g.5gb@6 u", "1g.5gb@5"), Requests("3g.20gb", "2g.10gb"), Options{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	r.Mode = &Mode{}
	var got []string
	for _, s := range r.Steps("GPU-1") {
		if s.GPU != "GPU-1" || s.Phase != step.Change || s.Reason == "" {
			t.Errorf("step %+v", s)
		}
		got = append(got, fmt.Sprint(s.Text, " ", s.Disruption, s.Disturbs))
	}
	if d := cmp.Diff([]string{
		"destroy 1g.5gb at 5 idle[]",
		"destroy 1g.5gb at 6 running[lease 1g.5gb]",
		"create 3g.20gb at 4 none[]",
		"create 2g.10gb at 0 none[]",
		"turn off MIG mode idle[]",
	}, got); d != "" {
		t.Error(d)
	}
}
