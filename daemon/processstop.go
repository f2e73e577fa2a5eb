package daemon

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/internal/step"
)

// processStop carries out the steps that end processes.
type processStop struct{ stopper *Stopper }

// Applied tells whether the process has ended.
func (h processStop) Applied(_ context.Context, s step.Step) (bool, error) {
	a, err := processOf(s)
	return err == nil && !procfs.Alive(a.PID, a.Start), err
}

// Do ends the process.
func (h processStop) Do(ctx context.Context, s step.Step) error {
	a, err := processOf(s)
	if err != nil {
		return err
	}
	return h.stopper.process(ctx, a.PID, a.Start, a.Name, s.GPU, s.Reason)
}

// Undo does nothing: who was stopped stays stopped.
func (h processStop) Undo(context.Context, step.Step) error { return nil }

func processOf(s step.Step) (processArgs, error) {
	var a processArgs
	if err := json.Unmarshal(s.Args, &a); err != nil {
		return a, fmt.Errorf("cannot read which process to stop: %w", err)
	}
	return a, nil
}
