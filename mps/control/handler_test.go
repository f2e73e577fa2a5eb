package control

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// fakeModes is the compute mode of one GPU.
type fakeModes struct {
	mu   sync.Mutex // guards the rest
	mode gpu.ComputeMode
	sets int
	fail error
}

func (m *fakeModes) Snapshot(context.Context, gpu.UUID) (gpu.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return gpu.Snapshot{ComputeMode: m.mode}, nil
}

func (m *fakeModes) SetComputeMode(_ context.Context, _ gpu.UUID, mode gpu.ComputeMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.mode = mode
	m.sets++
	return nil
}

func computeModeOf(h *Handler) gpu.ComputeMode {
	snap, _ := h.Driver.Snapshot(context.Background(), gpuA)
	return snap.ComputeMode
}

// onlyStep plans for one GPU and returns its only step.
func onlyStep(t *testing.T, h *Handler, want *mps.Settings) step.Step {
	t.Helper()
	desired := map[mps.Device]mps.Settings{}
	if want != nil {
		desired[deviceA] = *want
	}
	steps := mps.Plan(
		desired,
		map[mps.Device]mps.Observed{
			deviceA: {State: h.Supervisor.observeNow(t.Context(), deviceA), ComputeMode: computeModeOf(h)},
		},
	)
	if len(steps) != 1 {
		t.Fatalf("planned %+v, want one step", steps)
	}
	// Through its JSON, as after a restart.
	b, err := json.Marshal(steps[0])
	if err != nil {
		t.Fatal(err)
	}
	var s step.Step
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func applied(t *testing.T, h *Handler, s step.Step, want bool) {
	t.Helper()
	got, err := h.Applied(t.Context(), s)
	if err != nil || got != want {
		t.Errorf("applied(%s) = %v, %v, want %v", s.Text, got, err, want)
	}
}

func do(t *testing.T, h *Handler, s step.Step) {
	t.Helper()
	applied(t, h, s, false)
	if err := h.Do(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	applied(t, h, s, true)
}

func TestStepsDoAndUndo(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	m := &fakeModes{mode: gpu.ComputeDefault}
	h := &Handler{Supervisor: r.Supervisor, Driver: m}
	deny, report := mps.Settings{GPU: gpuA, DenyBypass: true}, mps.Settings{GPU: gpuA}

	start := onlyStep(t, h, &deny)
	do(t, h, start)
	if m.mode != gpu.ComputeExclusiveProcess {
		t.Errorf("with deny the compute mode is %s", m.mode)
	}
	pid := r.running(t).PID
	if err := h.Do(t.Context(), start); err != nil || m.sets != 1 {
		t.Errorf("done twice: %v, %d mode changes", err, m.sets)
	}

	relax := onlyStep(t, h, &report)
	if relax.Disruption != step.None {
		t.Errorf("the change to report disturbs %s", relax.Disruption)
	}
	do(t, h, relax)
	if m.mode != gpu.ComputeDefault || r.running(t).PID != pid {
		t.Errorf("without deny: mode %s, pid %d, before %d", m.mode, r.running(t).PID, pid)
	}
	if err := h.Undo(t.Context(), relax); err != nil {
		t.Fatal(err)
	}
	applied(t, h, start, true)

	stop := onlyStep(t, h, nil)
	do(t, h, stop)
	if m.mode != gpu.ComputeDefault {
		t.Errorf("stopped, and the compute mode is %s", m.mode)
	}
	if err := h.Undo(t.Context(), stop); err != nil {
		t.Fatal(err)
	}
	applied(t, h, start, true)
	if err := h.Undo(t.Context(), start); err != nil {
		t.Fatal(err)
	}
	applied(t, h, stop, true)
	if m.mode != gpu.ComputeDefault {
		t.Errorf("after the undo the compute mode is %s", m.mode)
	}
}

// When gpushared is killed between the change of mode and the start, the next run still knows the previous mode.
func TestModeIsRecordedBeforeItIsSet(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	m := &fakeModes{mode: gpu.ComputeProhibited}
	h := &Handler{Supervisor: r.Supervisor, Driver: m}
	set := mps.Settings{GPU: gpuA, DenyBypass: true}
	if err := r.keepPrevious(gpuA, m.mode); err != nil {
		t.Fatal(err)
	}
	m.mode = gpu.ComputeExclusiveProcess
	// It starts again, and exclusive-process is not recorded as the previous mode.
	do(t, h, onlyStep(t, h, &set))
	do(t, h, onlyStep(t, h, nil))
	if m.mode != gpu.ComputeProhibited {
		t.Errorf("the compute mode is %s, want the original one", m.mode)
	}
}

func TestFailedStartRestoresMode(t *testing.T) {
	t.Parallel()
	t.Run("no GPU", func(t *testing.T) {
		r := newFixtureOf(t, "580.178.04")
		m := &fakeModes{mode: gpu.ComputeDefault}
		h := &Handler{Supervisor: r.Supervisor, Driver: m}
		if err := os.Remove(filepath.Join(r.node.Root, "run/gpusim/cuda.sock")); err != nil {
			t.Fatal(err)
		}
		err := h.Do(t.Context(), onlyStep(t, h, &mps.Settings{GPU: gpuA, DenyBypass: true}))
		if err == nil || !strings.Contains(err.Error(), "no usable GPU") {
			t.Errorf("got %v", err)
		}
		st := r.observe(t)
		if m.mode != gpu.ComputeDefault || st == nil || st.Phase != mps.Restarting || !strings.Contains(st.Reason, "no usable GPU") ||
			!st.Retry.After(time.Unix(1e9, 0)) {
			t.Errorf("after the failure: mode %s, %+v", m.mode, st)
		}
	})
	t.Run("mode refused", func(t *testing.T) {
		r := newFixture(t)
		h := &Handler{Supervisor: r.Supervisor, Driver: &fakeModes{mode: gpu.ComputeDefault, fail: gpu.ErrDenied}}
		err := h.Do(t.Context(), onlyStep(t, h, &mps.Settings{GPU: gpuA, DenyBypass: true}))
		if !errors.Is(err, gpu.ErrDenied) {
			t.Errorf("got %v", err)
		}
		if st := r.observe(t); st != nil {
			t.Errorf("after the failure: %+v", st)
		}
	})
}

// An undo sets the mode also where it reads back. A driver that refuses that does not keep the undo from its end; one that does not answer
// does, and so does a refusal where the mode is another.
func TestUndoWithAModeThatIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		mode gpu.ComputeMode // at the undo
		fail error
		want error
	}{
		{"it reads back", gpu.ComputeExclusiveProcess, gpu.ErrDenied, nil},
		{"no answer", gpu.ComputeExclusiveProcess, gpu.ErrTimeout, gpu.ErrTimeout},
		{"it is another", gpu.ComputeDefault, gpu.ErrDenied, gpu.ErrDenied},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newFixture(t)
			m := &fakeModes{mode: gpu.ComputeDefault}
			h := &Handler{Supervisor: r.Supervisor, Driver: m}
			do(t, h, onlyStep(t, h, &mps.Settings{GPU: gpuA, DenyBypass: true}))
			relax := onlyStep(t, h, &mps.Settings{GPU: gpuA})
			m.fail = gpu.ErrDenied
			if err := h.Do(t.Context(), relax); !errors.Is(err, gpu.ErrDenied) {
				t.Fatalf("the step: %v", err)
			}
			m.mode, m.fail = c.mode, c.fail
			if err := h.Undo(t.Context(), relax); !errors.Is(err, c.want) {
				t.Errorf("the undo: %v, want %v", err, c.want)
			}
		})
	}
}

func TestForeignSteps(t *testing.T) {
	t.Parallel()
	h := &Handler{}
	s := step.Step{Kind: "mig.create"}
	if _, err := h.Applied(t.Context(), s); err == nil {
		t.Error("Applied accepted it")
	}
	if h.Do(t.Context(), s) == nil || h.Undo(t.Context(), s) == nil {
		t.Error("Do or Undo accepted it")
	}
	if err := h.Do(t.Context(), step.Step{Kind: mps.KindStart, Args: json.RawMessage(`[`)}); err == nil {
		t.Error("invalid arguments were accepted")
	}
}
