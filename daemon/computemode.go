package daemon

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// modes reads and sets compute modes.
type modes interface {
	Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error)
	SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error
}

// computeMode carries out the steps of kind KindComputeMode.
type computeMode struct{ driver modes }

// Applied reads the mode.
func (h computeMode) Applied(ctx context.Context, s step.Step) (bool, error) {
	a, err := computeArgs(s.Args)
	if err != nil {
		return false, err
	}
	snap, err := h.driver.Snapshot(ctx, gpu.UUID(s.GPU))
	return err == nil && snap.ComputeMode == a.Mode, err
}

// Do sets the mode.
func (h computeMode) Do(ctx context.Context, s step.Step) error { return h.set(ctx, s.GPU, s.Args) }

// Undo sets the mode that was before.
func (h computeMode) Undo(ctx context.Context, s step.Step) error { return h.set(ctx, s.GPU, s.Undo) }

func (h computeMode) set(ctx context.Context, id string, args json.RawMessage) error {
	a, err := computeArgs(args)
	if err != nil {
		return err
	}
	return h.driver.SetComputeMode(ctx, gpu.UUID(id), a.Mode)
}

func computeArgs(b json.RawMessage) (computeModeArgs, error) {
	var a computeModeArgs
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("cannot read the compute mode of a step: %w", err)
	}
	return a, nil
}
