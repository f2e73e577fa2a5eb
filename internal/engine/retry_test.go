package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// lossy is a handler that loses a number of calls.
type lossy struct {
	lose  int
	with  error
	calls int
	done  bool
}

func (h *lossy) Applied(context.Context, step.Step) (bool, error) { return h.done, nil }

func (h *lossy) Do(context.Context, step.Step) error {
	h.calls++
	if h.calls <= h.lose {
		return h.with
	}
	h.done = true
	return nil
}

func (h *lossy) Undo(context.Context, step.Step) error { return nil }

// A call that was lost although the GPU answers is repeated once; a refused call is not repeated.
func TestLostCallIsRepeated(t *testing.T) {
	for _, c := range []struct {
		name  string
		h     lossy
		want  State
		calls int
	}{
		{"lost once", lossy{lose: 1, with: gpu.ErrTimeout}, Reached, 2},
		{"lost twice", lossy{lose: 2, with: gpu.ErrTimeout}, Undone, 2},
		{"refused", lossy{lose: 1, with: gpu.ErrInUse}, Undone, 1},
		{"broken", lossy{lose: 1, with: errors.New("no")}, Undone, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &Engine{Handlers: Handlers{"test": &c.h}}
			out := e.Run(t.Context(), &Record{Steps: []step.Step{{ID: 1, Kind: "test", GPU: "GPU-a", Phase: step.Change}}}, Hooks{})
			if got := out["GPU-a"].State; got != c.want || c.h.calls != c.calls {
				t.Errorf("it ended %s after %d calls, want %s after %d", got, c.h.calls, c.want, c.calls)
			}
		})
	}
}
