package control

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// A compute mode that was changed from outside is a difference: the next plan sets it again, and disturbs no client.
func TestComputeModeIsComparedAndSetAgain(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	m := &fakeModes{mode: gpu.ComputeDefault}
	h := &Handler{Supervisor: r.Supervisor, Driver: m}
	set := mps.Settings{GPU: gpuA, DenyBypass: true}
	do(t, h, onlyStep(t, h, &set))
	r.burn(t, r.environment(t, mps.Limits{}), "--hold")
	before := r.running(t)
	for _, mode := range []gpu.ComputeMode{gpu.ComputeDefault, gpu.ComputeProhibited} {
		m.mode = mode
		again := onlyStep(t, h, &set)
		if again.Disruption != step.None {
			t.Errorf("setting it again disturbs: %s", again.Disruption)
		}
		do(t, h, again)
		if st := r.running(t); m.mode != gpu.ComputeExclusiveProcess || st.PID != before.PID || len(st.Clients) != 1 {
			t.Errorf("after %s from outside the mode is %s, and it is %+v", mode, m.mode, st)
		}
	}
	// The mode of an administrator's change is not the one from before MPS.
	do(t, h, onlyStep(t, h, nil))
	if m.mode != gpu.ComputeDefault {
		t.Errorf("after the stop the mode is %s", m.mode)
	}
	if left, err := os.ReadDir(r.StateDir); err != nil || len(left) != 0 {
		t.Errorf("the state directory has %v (%v)", left, err)
	}
}

// The mode from before is restored on every way out, also by another run of gpushared that has lost the run directory.
func TestModeIsRestoredWithoutTheRunDirectory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		want *mps.Settings // what the spec has by then
		mode gpu.ComputeMode
	}{
		{"no MPS", nil, gpu.ComputeProhibited},
		{"MPS that reports bypass", &mps.Settings{GPU: gpuA}, gpu.ComputeProhibited},
		{"MPS that denies bypass", &mps.Settings{GPU: gpuA, DenyBypass: true}, gpu.ComputeExclusiveProcess},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newFixture(t)
			m := &fakeModes{mode: gpu.ComputeProhibited}
			h := &Handler{Supervisor: r.Supervisor, Driver: m}
			do(t, h, onlyStep(t, h, &mps.Settings{GPU: gpuA, DenyBypass: true}))
			// The daemon has ended and its files are lost, as after a power cut; the mode is still set.
			if err := r.units.StopService(t.Context(), mps.UnitName(deviceA), deadline); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(r.RunDir); err != nil {
				t.Fatal(err)
			}
			h = &Handler{Supervisor: r.supervisor(), Driver: m}
			do(t, h, onlyStep(t, h, c.want))
			if m.mode != c.mode {
				t.Errorf("the mode is %s, want %s", m.mode, c.mode)
			}
			if c.want == nil {
				return
			}
			do(t, h, onlyStep(t, h, nil))
			if m.mode != gpu.ComputeProhibited {
				t.Errorf("after the stop the mode is %s", m.mode)
			}
		})
	}
}

// lateModes answers no change of the mode in time: each has its effect at the next change, before that one.
type lateModes struct {
	fakeModes
	late  bool
	later gpu.ComputeMode // empty: none
}

func (m *lateModes) SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	if m.late {
		m.later = mode
		return gpu.ErrTimeout
	}
	if m.later != "" {
		m.mode, m.later = m.later, ""
	}
	return m.fakeModes.SetComputeMode(ctx, id, mode)
}

// A compute mode that was set, and not in time, is not taken for one that was not set: the undo sets the mode from before, which reads
// back already.
func TestModeThatIsSetLater(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		previous *mps.Settings // what runs before the step
		want     gpu.ComputeMode
	}{
		{"a start", nil, gpu.ComputeProhibited},
		{"a start that denies no bypass any more", &mps.Settings{GPU: gpuA, DenyBypass: true}, gpu.ComputeExclusiveProcess},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newFixture(t)
			m := &lateModes{fakeModes: fakeModes{mode: gpu.ComputeProhibited}}
			h := &Handler{Supervisor: r.Supervisor, Driver: m}
			next := mps.Settings{GPU: gpuA, DenyBypass: c.previous == nil}
			if c.previous != nil {
				do(t, h, onlyStep(t, h, c.previous))
			}
			s := onlyStep(t, h, &next)
			m.late = true
			if err := h.Do(t.Context(), s); !errors.Is(err, gpu.ErrTimeout) {
				t.Fatalf("the step: %v", err)
			}
			m.late = false
			if err := h.Undo(t.Context(), s); err != nil {
				t.Fatalf("the undo: %v", err)
			}
			if m.later != "" {
				m.mode = m.later // The call of the step has its effect by now.
			}
			if m.mode != c.want {
				t.Errorf("the mode is %s, want %s", m.mode, c.want)
			}
		})
	}
}

// In a later boot the GPU began with another mode, which is then the one to restore.
func TestModeOfAnotherBoot(t *testing.T) {
	t.Parallel()
	old := previousMode{GPU: gpuA, Mode: gpu.ComputeProhibited, Boot: "another"}
	for _, c := range []struct {
		boot string
		now  gpu.ComputeMode
		want bool
	}{
		{"another", gpu.ComputeDefault, true},
		{"another", gpu.ComputeExclusiveProcess, true},
		{"this", gpu.ComputeDefault, false},
		{"this", gpu.ComputeExclusiveProcess, true},
	} {
		if old.applies(c.boot, c.now) != c.want {
			t.Errorf("in boot %s with mode %s: %v", c.boot, c.now, !c.want)
		}
	}
}

// A damaged record stops the change with its name, and is not taken for none.
func TestDamagedModeRecord(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	m := &fakeModes{mode: gpu.ComputeExclusiveProcess}
	h := &Handler{Supervisor: r.Supervisor, Driver: m}
	if err := os.MkdirAll(r.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.previous().Path(gpuA), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.Do(t.Context(), onlyStep(t, h, nil)); err == nil || m.sets != 0 {
		t.Errorf("got %v and %d mode changes", err, m.sets)
	}
}
