package power

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// Handler carries out the steps of kind KindLimit.
type Handler struct{ Caps *Caps }

// Applied reads the limit and the record of the one from before.
func (h Handler) Applied(ctx context.Context, s step.Step) (bool, error) {
	a, err := decode(s.Args)
	if err != nil {
		return false, err
	}
	id := gpu.UUID(s.GPU)
	kept, err := h.Caps.before().Get(id)
	if err != nil {
		return false, err
	}
	p, err := h.Caps.readNow(ctx, id)
	if err != nil || p == nil || p.Limit != a.Limit {
		return false, err
	}
	return (kept == nil) == (a.Before == nil) && (kept == nil || *kept == *a.Before), nil
}

// Do sets the limit.
func (h Handler) Do(ctx context.Context, s step.Step) error {
	return h.set(ctx, s.GPU, s.Args, false)
}

// Undo sets the limit that was before, also if it reads back as such: a call that did not answer in time may have its effect
// later, and the driver carries out the calls of one GPU in order.
func (h Handler) Undo(ctx context.Context, s step.Step) error {
	return h.set(ctx, s.GPU, s.Undo, true)
}

func (h Handler) set(ctx context.Context, id string, args json.RawMessage, always bool) error {
	a, err := decode(args)
	if err != nil {
		return err
	}
	return h.Caps.set(ctx, gpu.UUID(id), a, always)
}

func decode(b json.RawMessage) (Args, error) {
	var a Args
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("cannot read the power limit of a step: %w", err)
	}
	return a, nil
}
