package mig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// Driver is what the steps need of gpu.Driver.
type Driver interface {
	Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error)
	SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (gpu.ModeChange, error)
	CreateInstance(ctx context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error)
	CompleteInstance(ctx context.Context, id gpu.UUID, gi uint32, compute []gpu.NewCompute) (gpu.Instance, error)
	DestroyInstance(ctx context.Context, id gpu.UUID, gi uint32) error
}

// Handler carries out the steps of this package. All it knows is read from the hardware, so that a step that was cut
// short by a crash is finished or taken back by another process.
type Handler struct {
	Driver Driver
	// Reset resets one GPU. The driver's library has no such call; nil: a mode change that needs one fails and says so.
	Reset func(ctx context.Context, id gpu.UUID) error
	// InUseBy names who uses the GPU, or one of its instances, when the driver refused because of somebody; nil: the driver's
	// own list is all that is told.
	InUseBy func(ctx context.Context, s gpu.Snapshot, in *gpu.Instance) []string
}

// Applied tells whether the hardware already is as the step leaves it.
func (h *Handler) Applied(ctx context.Context, s step.Step) (bool, error) {
	id := gpu.UUID(s.GPU)
	if s.Kind == KindMode {
		var a ModeArgs
		if err := decode(s.Args, &a); err != nil {
			return false, err
		}
		snap, err := h.Driver.Snapshot(ctx, id)
		return err == nil && snap.MIG.Current == a.On && snap.MIG.Pending == a.On, err
	}
	var a InstanceArgs
	if err := decode(s.Args, &a); err != nil {
		return false, err
	}
	in, _, err := h.find(ctx, id, a)
	if err != nil {
		return false, err
	}
	switch s.Kind {
	case KindCreate:
		return in != nil && a.complete(*in), nil
	case KindDestroy:
		return in == nil || !a.isPartOf(*in), nil
	}
	return false, unknownKind(s.Kind)
}

// Do carries a step out. Doing it twice is doing it once.
func (h *Handler) Do(ctx context.Context, s step.Step) error {
	id := gpu.UUID(s.GPU)
	switch s.Kind {
	case KindMode:
		return h.mode(ctx, id, s.Args)
	case KindCreate:
		return h.create(ctx, id, s.Args)
	case KindDestroy:
		return h.destroy(ctx, id, s.Args)
	}
	return unknownKind(s.Kind)
}

// Undo takes a step back to what was before it. A step without undo data stays.
func (h *Handler) Undo(ctx context.Context, s step.Step) error {
	if len(s.Undo) == 0 {
		return nil
	}
	id := gpu.UUID(s.GPU)
	switch s.Kind {
	case KindMode:
		return h.mode(ctx, id, s.Undo)
	case KindCreate:
		return h.destroy(ctx, id, s.Undo)
	case KindDestroy:
		return h.create(ctx, id, s.Undo)
	}
	return unknownKind(s.Kind)
}

func (h *Handler) mode(ctx context.Context, id gpu.UUID, raw json.RawMessage) error {
	var a ModeArgs
	if err := decode(raw, &a); err != nil {
		return err
	}
	op := "turn " + onOff(a.On) + " MIG mode"
	snap, err := h.Driver.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	if snap.MIG.Current == a.On && snap.MIG.Pending == a.On {
		return nil
	}
	change, err := h.setMode(ctx, id, a.On, snap)
	if err != nil {
		return h.explainInUse(ctx, err, op, id, snap, nil)
	}
	if change.Current == a.On {
		return nil
	}
	// Accepted is not active: the driver keeps it pending until the GPU is idle, or reset.
	why := change.Activation
	if why == nil {
		why = gpu.ErrResetRequired
	}
	switch {
	case errors.Is(why, gpu.ErrInUse):
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w%s; the change is pending", gpu.ErrInUse, h.inUseByText(ctx, snap, nil))}
	case !a.Reset:
		return &ResetRequired{On: a.On}
	case h.Reset == nil:
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w, and nothing here can reset a GPU; the change is pending: reset it by hand", why)}
	}
	if err := h.Reset(ctx, id); err != nil {
		return err
	}
	snap, err = h.Driver.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	if snap.MIG.Current != a.On {
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w: it is still %s after a reset", gpu.ErrUnknown, onOff(snap.MIG.Current))}
	}
	return nil
}

// passing is how long a GPU may be in use by somebody whom nobody can name, and how often it is asked again meanwhile: who
// only looks (nvidia-smi, an exporter, a worker of ours that is about to end) has it open for a moment.
const (
	transientUse      = 3 * time.Second
	modeRetryInterval = 250 * time.Millisecond
)

// setMode asks for the mode until it is active, or somebody is in its way who will not go by himself.
func (h *Handler) setMode(ctx context.Context, id gpu.UUID, on bool, snap gpu.Snapshot) (gpu.ModeChange, error) {
	waiting, cancel := context.WithTimeout(ctx, transientUse)
	defer cancel()
	for {
		change, err := h.Driver.SetMIGMode(ctx, id, on)
		if err != nil || change.Current == on || !errors.Is(change.Activation, gpu.ErrInUse) || h.inUseByText(ctx, snap, nil) != "" {
			return change, err
		}
		retry := time.NewTimer(modeRetryInterval)
		select {
		case <-retry.C:
		case <-waiting.Done():
			retry.Stop()
			return change, nil
		}
	}
}

func (h *Handler) create(ctx context.Context, id gpu.UUID, raw json.RawMessage) error {
	var a InstanceArgs
	if err := decode(raw, &a); err != nil {
		return err
	}
	op := "create " + a.String()
	in, snap, err := h.find(ctx, id, a)
	if err != nil {
		return err
	}
	if in != nil && a.complete(*in) {
		return nil
	}
	var got gpu.Instance
	if in != nil && a.isPartOf(*in) {
		op = "complete " + a.String()
		_, lacks := computeFits(in.Compute, a.Compute, a.Slices)
		got, err = h.Driver.CompleteInstance(ctx, id, in.ID, lacks)
	} else {
		got, err = h.Driver.CreateInstance(ctx, id, gpu.NewInstance{ProfileID: a.ProfileID, Placement: a.Placement, Compute: a.Compute})
	}
	if err != nil {
		return h.explainInUse(ctx, err, op, id, snap, in)
	}
	if got.ProfileID != a.ProfileID || got.Placement != a.Placement || !a.complete(got) {
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w: the driver made %s with %d compute instances instead", gpu.ErrUnknown, Placed{Name: fmt.Sprintf("profile %d", got.ProfileID), Placement: got.Placement}, len(got.Compute))}
	}
	return nil
}

func (h *Handler) destroy(ctx context.Context, id gpu.UUID, raw json.RawMessage) error {
	var a InstanceArgs
	if err := decode(raw, &a); err != nil {
		return err
	}
	in, snap, err := h.find(ctx, id, a)
	if err != nil {
		return err
	}
	if in == nil || !a.isPartOf(*in) {
		return nil
	}
	op := "destroy " + a.String()
	if processList(snap.Processes, &in.ID) != "" {
		// The driver would refuse too, but only after it took away the compute instances that are idle.
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w%s", gpu.ErrInUse, h.inUseByText(ctx, snap, in))}
	}
	err = h.Driver.DestroyInstance(ctx, id, in.ID)
	if err == nil || errors.Is(err, gpu.ErrNotFound) {
		return nil
	}
	return h.explainInUse(ctx, err, op, id, snap, in)
}

// find reads the GPU and looks for an instance of this profile at this placement.
func (h *Handler) find(ctx context.Context, id gpu.UUID, a InstanceArgs) (*gpu.Instance, gpu.Snapshot, error) {
	snap, err := h.Driver.Snapshot(ctx, id)
	if err != nil {
		return nil, snap, err
	}
	i := slices.IndexFunc(snap.Instances, func(in gpu.Instance) bool {
		return in.ProfileID == a.ProfileID && in.Placement == a.Placement
	})
	if i < 0 {
		return nil, snap, nil
	}
	return &snap.Instances[i], snap, nil
}

// complete tells whether an instance has all that these arguments ask for, and nothing else.
func (a InstanceArgs) complete(in gpu.Instance) bool {
	ok, lacks := computeFits(in.Compute, a.Compute, a.Slices)
	return ok && len(lacks) == 0
}

// isPartOf tells whether an instance is the one that these arguments speak of, perhaps cut short: half destroyed, or
// half made. Another one with other compute instances at the same place is not it.
func (a InstanceArgs) isPartOf(in gpu.Instance) bool {
	if a.Orphan {
		return len(in.Compute) == 0
	}
	ok, _ := computeFits(in.Compute, a.Compute, a.Slices)
	return ok
}

// decode reads a step's arguments.
func decode(raw json.RawMessage, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("cannot read the arguments of a MIG step: %w", err)
	}
	return nil
}

// inStepTerms says a driver's error in the words of the step.
func inStepTerms(err error, op string, id gpu.UUID) error {
	e, ok := errors.AsType[*gpu.Error](err)
	if !ok {
		return fmt.Errorf("cannot %s on %s: %w", op, id, err)
	}
	return &gpu.Error{Op: op, GPU: id, Code: e.Code, Err: e.Err}
}

// explainInUse says a driver's error in the words of the step, and who is in the way when it is because of somebody.
func (h *Handler) explainInUse(ctx context.Context, err error, op string, id gpu.UUID, snap gpu.Snapshot, in *gpu.Instance) error {
	err = inStepTerms(err, op, id)
	e, ok := errors.AsType[*gpu.Error](err)
	if !ok || !errors.Is(e.Err, gpu.ErrInUse) {
		return err
	}
	if by := h.inUseByText(ctx, snap, in); by != "" {
		e.Err = fmt.Errorf("%w%s", e.Err, by)
	}
	return e
}

// inUseByText names who uses a GPU, or one of its instances: " by pid 12 (python), pid 13 (exporter)".
func (h *Handler) inUseByText(ctx context.Context, snap gpu.Snapshot, in *gpu.Instance) string {
	if h.InUseBy != nil {
		if users := h.InUseBy(ctx, snap, in); len(users) != 0 {
			return " by " + strings.Join(users, ", ")
		}
	}
	if in != nil {
		return processList(snap.Processes, &in.ID)
	}
	return processList(snap.Processes, nil)
}

// processList names the processes of a GPU, or of one of its instances: " by pid 12, pid 13".
func processList(list []gpu.Process, gi *uint32) string {
	var out []string
	for _, p := range list {
		if gi == nil || p.GI != nil && *p.GI == *gi {
			out = append(out, fmt.Sprintf("pid %d", p.PID))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " by " + strings.Join(out, ", ")
}

func unknownKind(kind string) error {
	return fmt.Errorf("cannot carry out a step of kind %q: it is not one of MIG's", kind)
}
