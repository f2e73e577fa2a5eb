package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// scripted is a handler whose steps and undos end as the test says, by the ids of the steps.
type scripted struct {
	do, undo map[int]error
	mu       sync.Mutex // The steps of different GPUs run at once.
	done     map[int]bool
}

func (h *scripted) Applied(_ context.Context, s step.Step) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.done[s.ID], nil
}

func (h *scripted) Do(_ context.Context, s step.Step) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done[s.ID] = h.do[s.ID] == nil
	return h.do[s.ID]
}

func (h *scripted) Undo(_ context.Context, s step.Step) error { return h.undo[s.ID] }

// The outcome of a change is not known if a step or the undo of one did not answer. A result names the steps that may have been begun.
func TestUnknownOutcome(t *testing.T) {
	broken := errors.New("no")
	steps := []step.Step{
		{ID: 1, Kind: "test", GPU: "GPU-a", Phase: step.Change},
		{ID: 2, Kind: "test", GPU: "GPU-b", Phase: step.Change},
		{ID: 3, Kind: "test", GPU: "GPU-a", Phase: step.Change},
		{ID: 4, Kind: "test", GPU: "GPU-a", Phase: step.Change},
		{ID: 5, Kind: "test", GPU: "GPU-a", Phase: step.RevokeAccess},
	}
	for _, c := range []struct {
		name     string
		do, undo map[int]error
		state    State
		unknown  bool
		begun    []int
	}{
		{name: "reached", state: Reached},
		{name: "a step fails", do: map[int]error{3: broken}, state: Undone, begun: []int{5, 1, 3}},
		{name: "a step does not answer", do: map[int]error{3: gpu.ErrTimeout}, state: Undone, unknown: true, begun: []int{5, 1, 3}},
		{name: "the first does not answer", do: map[int]error{5: gpu.ErrTimeout}, state: Undone, unknown: true, begun: []int{5}},
		{name: "an undo fails", do: map[int]error{3: broken}, undo: map[int]error{1: broken}, state: Held, begun: []int{5, 1, 3}},
		{name: "an undo does not answer", do: map[int]error{3: broken}, undo: map[int]error{1: gpu.ErrTimeout}, state: Held, unknown: true, begun: []int{5, 1, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &Engine{Handlers: Handlers{"test": &scripted{do: c.do, undo: c.undo, done: map[int]bool{}}}}
			l := e.Run(t.Context(), &Record{Steps: slices.Clone(steps)}, Hooks{})["GPU-a"]
			if l.State != c.state || l.Unknown() != c.unknown {
				t.Errorf("it ended %s, unknown: %v, want %s, %v: %v", l.State, l.Unknown(), c.state, c.unknown, l.Err)
			}
			if c.do[3] != nil && !errors.Is(l.Err, c.do[3]) {
				t.Errorf("the error of the step is lost: %v", l.Err)
			}
			var begun []int
			for _, s := range l.Begun(steps, "GPU-a") {
				begun = append(begun, s.ID)
			}
			if !slices.Equal(begun, c.begun) {
				t.Errorf("begun were %v, want %v", begun, c.begun)
			}
		})
	}
	if of := (Result{State: Undone, Step: -1}).Begun(steps, "GPU-a"); len(of) != 0 {
		t.Errorf("a change that was not begun has begun %v", of)
	}
}
