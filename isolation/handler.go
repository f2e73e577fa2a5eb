package isolation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/step"
)

// Slices is the part of cgroup.Port that the steps use.
type Slices interface {
	Info() cgroup.Info
	SetSlice(ctx context.Context, s cgroup.Slice) (wrote bool, err error)
	Slice(ctx context.Context, name cgroup.SliceName) (cgroup.SliceState, error)
	RemoveSlice(ctx context.Context, name cgroup.SliceName) error
}

// Handler carries out the steps of slices. It reads back what was done, so that another process can continue.
type Handler struct {
	Slices Slices
}

// Applied reports whether the slice is already as the step leaves it, in what can be enforced here.
func (h *Handler) Applied(ctx context.Context, s step.Step) (bool, error) {
	switch s.Kind {
	case KindSet:
		var want cgroup.Slice
		if err := decode(s.Args, &want); err != nil {
			return false, err
		}
		is, err := h.find(ctx, want.Name)
		return is != nil && equal(asSlice(*is), want, h.Slices.Info()), err
	case KindRemove:
		var name cgroup.SliceName
		if err := decode(s.Args, &name); err != nil {
			return false, err
		}
		is, err := h.find(ctx, name)
		return is == nil && err == nil, err
	}
	return false, unknownKind(s.Kind)
}

// Do carries out a step. It is idempotent.
func (h *Handler) Do(ctx context.Context, s step.Step) error {
	switch s.Kind {
	case KindSet:
		var want cgroup.Slice
		if err := decode(s.Args, &want); err != nil {
			return err
		}
		return h.set(ctx, want)
	case KindRemove:
		var name cgroup.SliceName
		if err := decode(s.Args, &name); err != nil {
			return err
		}
		return h.remove(ctx, name)
	}
	return unknownKind(s.Kind)
}

// Undo restores the state before a step. It does nothing for a step without undo data.
func (h *Handler) Undo(ctx context.Context, s step.Step) error {
	if len(s.Undo) == 0 {
		return nil
	}
	var was Previous
	if err := decode(s.Undo, &was); err != nil {
		return err
	}
	switch {
	case s.Kind != KindSet && s.Kind != KindRemove:
		return unknownKind(s.Kind)
	case was.Slice != nil:
		return h.set(ctx, *was.Slice)
	case s.Kind == KindRemove:
		return nil // there was no slice to remove
	}
	var created cgroup.Slice
	if err := decode(s.Args, &created); err != nil {
		return err
	}
	return h.remove(ctx, created.Name)
}

func (h *Handler) set(ctx context.Context, s cgroup.Slice) error {
	if _, err := h.Slices.SetSlice(ctx, s); err != nil {
		return fmt.Errorf("cannot set the slice of %s: %w", s.Name, err)
	}
	return nil
}

func (h *Handler) remove(ctx context.Context, name cgroup.SliceName) error {
	if err := h.Slices.RemoveSlice(ctx, name); err != nil {
		return fmt.Errorf("cannot remove the slice of %s: %w", name, err)
	}
	return nil
}

// find reads one slice back; nil means none.
func (h *Handler) find(ctx context.Context, name cgroup.SliceName) (*cgroup.SliceState, error) {
	is, err := h.Slices.Slice(ctx, name)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the slice of %s: %w", name, err)
	}
	return &is, nil
}

func decode(b json.RawMessage, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("cannot read the arguments of a step: %w", err)
	}
	return nil
}

func unknownKind(kind string) error {
	return fmt.Errorf("cannot carry out a step of kind %q: unknown kind", kind)
}
