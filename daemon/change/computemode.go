package change

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// computeModes reads and sets compute modes.
type computeModes interface {
	Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error)
	SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error
}

// ComputeMode carries out the steps of kind KindComputeMode.
type ComputeMode struct{ Driver computeModes }

// Applied reads the mode.
func (h ComputeMode) Applied(ctx context.Context, s step.Step) (bool, error) {
	a, err := computeArgs(s.Args)
	if err != nil {
		return false, err
	}
	snap, err := h.Driver.Snapshot(ctx, gpu.UUID(s.GPU))
	return err == nil && snap.ComputeMode == a.Mode, err
}

// Do sets the mode.
func (h ComputeMode) Do(ctx context.Context, s step.Step) error { return h.set(ctx, s.GPU, s.Args) }

// Undo sets the mode that was before.
func (h ComputeMode) Undo(ctx context.Context, s step.Step) error { return h.set(ctx, s.GPU, s.Undo) }

func (h ComputeMode) set(ctx context.Context, id string, args json.RawMessage) error {
	a, err := computeArgs(args)
	if err != nil {
		return err
	}
	return h.Driver.SetComputeMode(ctx, gpu.UUID(id), a.Mode)
}

func computeArgs(b json.RawMessage) (planner.ComputeModeArgs, error) {
	var a planner.ComputeModeArgs
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("cannot read the compute mode of a step: %w", err)
	}
	return a, nil
}
