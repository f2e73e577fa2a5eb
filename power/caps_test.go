package power

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// board is a GPU that remembers its limit, or keeps another one.
type board struct {
	limit  uint64
	sticks uint64 // not 0: it keeps this limit
	reads  int
	writes int
	err    error  // of a write
	late   uint64 // not 0: a write that did not answer has its effect before the next one
}

func (b *board) Health(context.Context, gpu.UUID) (gpu.Health, error) {
	b.reads++
	return gpu.Health{Power: &gpu.Power{Limit: b.limit, Default: 400_000, Min: 100_000, Max: 400_000}}, nil
}

func (b *board) SetPowerLimit(_ context.Context, _ gpu.UUID, milliwatts uint64) error {
	b.writes++
	if b.late != 0 {
		b.limit, b.late = b.late, 0
	}
	if b.err != nil {
		if errors.Is(b.err, gpu.ErrTimeout) {
			b.late = milliwatts
		}
		return b.err
	}
	b.limit = milliwatts
	if b.sticks != 0 {
		b.limit = b.sticks
	}
	return nil
}

func caps(t *testing.T, b *board) *Caps {
	t.Helper()
	now := time.Unix(1000, 0)
	return &Caps{Driver: b, Dir: filepath.Join(t.TempDir(), "power"), Now: func() time.Time { return now }}
}

func target(limit uint64) []Target {
	return []Target{{GPU: "GPU-1", Name: "GPU 0 (A100)", Epoch: "1/1", Cap: limit}}
}

// A limit whose call did not answer in time is undone also if the GPU has the one from before yet: the effect may come later, when
// nothing is recorded of it any more.
func TestALimitThatComesLate(t *testing.T) {
	b := &board{limit: 350_000}
	c := caps(t, b)
	h := Handler{c}
	step := c.Plan(t.Context(), target(300_000), true).Steps[0]
	b.err = gpu.ErrTimeout
	if err := h.Do(t.Context(), step); !errors.Is(err, gpu.ErrTimeout) {
		t.Fatal(err)
	}
	b.err = nil
	if err := h.Undo(t.Context(), step); err != nil {
		t.Fatal(err)
	}
	if b.late != 0 {
		b.limit = b.late
	}
	if kept, err := c.before().Get("GPU-1"); b.limit != 350_000 || kept != nil || err != nil {
		t.Errorf("the limit is %d, %+v is recorded, %v", b.limit, kept, err)
	}
}

// TestStepIsCarriedOutAndUndone does and undoes the steps of a cap, of another one and of the way out, and each a second time.
func TestStepIsCarriedOutAndUndone(t *testing.T) {
	b := &board{limit: 350_000}
	c := caps(t, b)
	h := Handler{c}
	ctx := t.Context()
	state := func() (uint64, bool) {
		kept, err := c.before().Get("GPU-1")
		if err != nil {
			t.Fatal(err)
		}
		return b.limit, kept != nil
	}
	for _, s := range []struct {
		name  string
		cap   uint64
		limit uint64
		kept  bool
	}{{"first", 300_000, 300_000, true}, {"another", 250_000, 250_000, true}, {"none", 0, 350_000, false}} {
		p := c.Plan(ctx, target(s.cap), true)
		if len(p.Steps) != 1 || len(p.Problems) != 0 {
			t.Fatalf("%s: %+v", s.name, p)
		}
		limit, kept := state()
		step := p.Steps[0]
		if done, err := h.Applied(ctx, step); done || err != nil {
			t.Errorf("%s: applied before: %v, %v", s.name, done, err)
		}
		if err := errors.Join(h.Do(ctx, step), h.Undo(ctx, step)); err != nil {
			t.Fatal(err)
		}
		if l, k := state(); l != limit || k != kept {
			t.Errorf("%s, undone: %d, kept %v; want %d, %v", s.name, l, k, limit, kept)
		}
		writes := b.writes
		if err := errors.Join(h.Do(ctx, step), h.Do(ctx, step)); err != nil || b.writes != writes+1 {
			t.Errorf("%s: %v, %d writes; want one", s.name, err, b.writes-writes)
		}
		if l, k := state(); l != s.limit || k != s.kept {
			t.Errorf("%s: %d, kept %v; want %d, %v", s.name, l, k, s.limit, s.kept)
		}
		if done, err := h.Applied(ctx, step); !done || err != nil {
			t.Errorf("%s: applied after: %v, %v", s.name, done, err)
		}
		if p := c.Plan(ctx, target(s.cap), true); len(p.Steps) != 0 {
			t.Errorf("%s: planned again: %+v", s.name, p.Steps)
		}
	}
}

// TestLimitThatReadsBackAsAnother is an error although the driver accepted it, and the limit from before is on disk.
func TestLimitThatReadsBackAsAnother(t *testing.T) {
	b := &board{limit: 400_000, sticks: 380_000}
	c := caps(t, b)
	p := c.Plan(t.Context(), target(300_000), true)
	err := Handler{c}.Do(t.Context(), p.Steps[0])
	if err == nil || !strings.Contains(err.Error(), "was set to 300 W and reads back as 380 W") {
		t.Errorf("%v", err)
	}
	if kept, err := c.before().Get("GPU-1"); err != nil || kept == nil || kept.Limit != 400_000 {
		t.Errorf("kept %+v, %v", kept, err)
	}
}

// TestNothingIsReadWithoutNeed reads no GPU without a cap and a record, and one with a cap every ReadInterval.
func TestNothingIsReadWithoutNeed(t *testing.T) {
	b := &board{limit: 400_000}
	c := caps(t, b)
	now := time.Unix(1000, 0)
	c.Now = func() time.Time { return now }
	pass := func(limit uint64, reads int, when string) {
		t.Helper()
		before := b.reads
		c.Plan(t.Context(), target(limit), false)
		if b.reads-before != reads {
			t.Errorf("%s: %d readings; want %d", when, b.reads-before, reads)
		}
	}
	pass(0, 0, "without a cap")
	pass(400_000, 1, "first")
	pass(400_000, 0, "again")
	now = now.Add(ReadInterval)
	pass(400_000, 1, "later")
	now = now.Add(-time.Hour)
	pass(400_000, 1, "the clock was set back")
	other := target(400_000)
	other[0].Epoch = "2/1"
	before := b.reads
	if c.Plan(t.Context(), other, false); b.reads != before+1 {
		t.Error("a boot: not read")
	}
	other[0].Err = gpu.ErrTimeout
	if p := c.Plan(t.Context(), other, true); b.reads != before+1 || len(p.Problems) != 0 {
		t.Errorf("a GPU that does not answer: %+v", p)
	}
}

// TestUnmanageNamesWhatRemains: the limit of a GPU that does not answer is not restored.
func TestUnmanageNamesWhatRemains(t *testing.T) {
	b := &board{limit: 400_000}
	c := caps(t, b)
	p := c.Plan(t.Context(), target(300_000), true)
	if err := (Handler{c}).Do(t.Context(), p.Steps[0]); err != nil {
		t.Fatal(err)
	}
	if steps, warnings := c.PlanUnmanage(t.Context(), target(0)); len(steps) != 1 || steps[0].Reason != "the node is unmanaged" ||
		len(warnings) != 0 {
		t.Errorf("%+v, %q", steps, warnings)
	}
	silent := target(0)
	silent[0].Err = gpu.ErrTimeout
	if steps, warnings := c.PlanUnmanage(t.Context(), silent); len(steps) != 0 || len(warnings) != 1 ||
		!strings.Contains(warnings[0], "the power limit of GPU 0 (A100) is not restored") {
		t.Errorf("%+v, %q", steps, warnings)
	}
}

// TestDamagedRecord refuses to guess the limit from before.
func TestDamagedRecord(t *testing.T) {
	b := &board{limit: 300_000}
	c := caps(t, b)
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.before().Path("GPU-1"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := c.Plan(t.Context(), target(0), true)
	if err := p.Problems["GPU-1"]; err == nil || !strings.Contains(err.Error(), "is damaged") || len(p.Steps) != 0 {
		t.Errorf("%v, %+v", err, p.Steps)
	}
	if _, warnings := c.PlanUnmanage(t.Context(), target(0)); len(warnings) != 1 || !strings.Contains(warnings[0], "GPU 0 (A100)") {
		t.Errorf("%q", warnings)
	}
}

// TestAnObservationWithAnotherLimitIsFollowed: a limit that another tool set is corrected with the next observation, however old the
// reading is, and one that was observed before it was set causes no step.
func TestAnObservationWithAnotherLimitIsFollowed(t *testing.T) {
	b := &board{limit: 400_000}
	c := caps(t, b)
	pass := func(observed uint64) Plan {
		t.Helper()
		targets := target(300_000)
		targets[0].Limit = &observed
		p := c.Plan(t.Context(), targets, false)
		for i := range p.Steps {
			if err := (Handler{c}).Do(t.Context(), p.Steps[i]); err != nil {
				t.Fatal(err)
			}
		}
		c.Converged(targets, p)
		return p
	}
	pass(400_000)
	if p := pass(400_000); len(p.Steps) != 0 || b.limit != 300_000 {
		t.Errorf("an observation from before: %+v", p.Steps)
	}
	b.limit = 250_000
	if p := pass(250_000); len(p.Steps) != 1 || b.limit != 300_000 || p.Changed["GPU-1"] == "" {
		t.Errorf("set by another tool: %+v, the limit is %d mW", p, b.limit)
	}
	before := b.reads
	if pass(300_000); b.reads != before {
		t.Error("an observation as desired: it was read again")
	}
}

// TestChangedFromOutside: a difference is one only if the cap was in force before, in the same epoch.
func TestChangedFromOutside(t *testing.T) {
	b := &board{limit: 400_000}
	c := caps(t, b)
	pass := func(targets []Target) Plan {
		t.Helper()
		p := c.Plan(t.Context(), targets, true)
		for i := range p.Steps {
			if err := (Handler{c}).Do(t.Context(), p.Steps[i]); err != nil {
				t.Logf("not set: %v", err)
			}
		}
		c.Converged(targets, p)
		return p
	}
	if p := pass(target(300_000)); len(p.Changed) != 0 || !c.InForce("GPU-1") {
		t.Errorf("first: %+v", p)
	}
	b.limit = 400_000
	if p := pass(target(300_000)); p.Changed["GPU-1"] != "the power limit of GPU 0 (A100): 300 W → 400 W" || !c.InForce("GPU-1") {
		t.Errorf("changed: %+v", p)
	}
	b.limit = 400_000
	if p := pass(target(250_000)); len(p.Changed) != 0 {
		t.Errorf("another cap: %+v", p)
	}
	b.limit, b.err = 400_000, gpu.ErrDenied
	pass(target(250_000))
	if c.InForce("GPU-1") || !strings.Contains(c.Unmet()["GPU-1"], "is 400 W, and power_cap is 250 W") {
		t.Errorf("refused: %v", c.Unmet())
	}
	b.err = nil
	booted := target(250_000)
	booted[0].Epoch = "2/1"
	if p := pass(booted); len(p.Changed) != 0 || !c.InForce("GPU-1") || len(c.Unmet()) != 0 {
		t.Errorf("after a boot: %+v, %v", p, c.Unmet())
	}
}
