package change

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/step"
)

// ProcessStop carries out the steps that end processes.
type ProcessStop struct{ Stopper *stop.Stopper }

// Applied reports whether the process has ended.
func (h ProcessStop) Applied(_ context.Context, s step.Step) (bool, error) {
	a, err := processOf(s)
	return err == nil && !procfs.Alive(a.PID, a.Start), err
}

// Do ends the process.
func (h ProcessStop) Do(ctx context.Context, s step.Step) error {
	a, err := processOf(s)
	if err != nil {
		return err
	}
	return h.Stopper.Process(ctx, a.PID, a.Start, a.Name, s.GPU, s.Reason)
}

// Undo does nothing: a stopped process stays stopped.
func (h ProcessStop) Undo(context.Context, step.Step) error { return nil }

func processOf(s step.Step) (planner.ProcessArgs, error) {
	var a planner.ProcessArgs
	if err := json.Unmarshal(s.Args, &a); err != nil {
		return a, fmt.Errorf("cannot read which process to stop: %w", err)
	}
	return a, nil
}
