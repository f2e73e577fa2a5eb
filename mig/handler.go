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

// Driver is the part of gpu.Driver that the steps need.
type Driver interface {
	Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error)
	SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (gpu.ModeChange, error)
	CreateInstance(ctx context.Context, id gpu.UUID, want gpu.NewInstance) (gpu.Instance, error)
	CompleteInstance(ctx context.Context, id gpu.UUID, gi uint32, compute []gpu.NewCompute) (gpu.Instance, error)
	DestroyInstance(ctx context.Context, id gpu.UUID, gi uint32) error
}

// Handler carries out the steps of this package. It keeps no state and reads everything from the hardware, so that another
// process can finish or undo a step that a crash interrupted.
type Handler struct {
	Driver Driver
	// Reset resets one GPU; NVML has no such call. nil: a mode change that needs a reset fails.
	Reset func(ctx context.Context, id gpu.UUID) error
	// InUseBy names the users of the GPU, or of one of its instances, for an error of the driver that it is in use. nil: the
	// error lists only the processes that the driver reports.
	InUseBy func(ctx context.Context, s gpu.Snapshot, in *gpu.Instance) []string
}

// Applied reports whether the hardware is already in the state that the step leads to.
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

// NotThere says why a step whose call succeeded is not there when it is read back. Instances are identified by profile and
// placement, so one that another program created since looks like the one that was destroyed.
func (h *Handler) NotThere(s step.Step) string {
	switch s.Kind {
	case KindDestroy:
		return "the driver destroyed it, and then such an instance was there: another program created it again, or the driver did not destroy it"
	case KindCreate:
		return "the driver created it, and then it was not there: another program destroyed it, or the driver did not create it"
	}
	return "the driver accepted the mode, and then it was not active: another program changed it, or the driver did not"
}

// Do carries a step out. It is idempotent.
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

// Undo restores the state before a step. A step without undo data is not undone.
func (h *Handler) Undo(ctx context.Context, s step.Step) error {
	if s.Irreversible != "" {
		return h.stillThere(ctx, s)
	}
	if len(s.Undo) == 0 {
		return nil
	}
	id := gpu.UUID(s.GPU)
	switch s.Kind {
	case KindMode:
		return h.undoMode(ctx, id, s.Undo)
	case KindCreate:
		return h.destroy(ctx, id, s.Undo)
	case KindDestroy:
		return h.create(ctx, id, s.Undo)
	}
	return unknownKind(s.Kind)
}

// stillThere is the undo of a destroy that cannot be undone: it succeeds only where nothing was destroyed.
func (h *Handler) stillThere(ctx context.Context, s step.Step) error {
	var a InstanceArgs
	if err := decode(s.Args, &a); err != nil {
		return err
	}
	in, _, err := h.find(ctx, gpu.UUID(s.GPU), a)
	if err != nil {
		return err
	}
	switch {
	case in == nil:
		return fmt.Errorf("%s was destroyed, and %s", a.Placed, s.Irreversible)
	case !a.complete(*in):
		return fmt.Errorf("%s has lost compute instances, and %s", a.Placed, s.Irreversible)
	}
	return nil
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
	if change.Current == a.On && change.Pending == a.On {
		return nil
	}
	// An accepted mode is not yet active: the driver keeps it pending until the GPU is idle or reset. Unless only a boot can activate
	// it, the undo of the step withdraws it. The status shows the mode that is pending now.
	why := change.Activation
	if why == nil {
		why = gpu.ErrResetRequired
	}
	switch {
	case errors.Is(why, gpu.ErrInUse):
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w%s", gpu.ErrInUse, h.inUseByText(ctx, snap, nil))}
	case !a.Reset:
		return &ResetRequired{On: a.On}
	case h.Reset == nil && change.Pending == a.On:
		return &AfterBoot{On: a.On}
	case h.Reset == nil:
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w, and the driver did not reset this GPU", why)}
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

// undoMode restores the mode from before a step. It is set also where it reads back, as current and as pending: a call that was not
// answered may have its effect later, and the driver carries out the changes of one GPU in order. So the mode that is read after
// this call is the one that remains. That the driver refuses the call is no error where the mode then reads back.
func (h *Handler) undoMode(ctx context.Context, id gpu.UUID, raw json.RawMessage) error {
	var a ModeArgs
	if err := decode(raw, &a); err != nil {
		return err
	}
	snap, err := h.Driver.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	if snap.MIG.Current == a.On && snap.MIG.Pending == a.On {
		if _, err := h.Driver.SetMIGMode(ctx, id, a.On); gpu.IsAny(err, gpu.ErrTimeout, gpu.ErrStuck) || ctx.Err() != nil {
			return inStepTerms(errors.Join(err, ctx.Err()), "restore MIG mode "+onOff(a.On), id)
		}
	}
	return h.mode(ctx, id, raw)
}

// transientUse is how long the handler waits while the driver reports a GPU as in use and no user can be named, and
// modeRetryInterval is the time between two attempts. Programs that only read (nvidia-smi, an exporter, a gpushare-nvml
// that is about to end) have the GPU open for a moment.
const (
	transientUse      = 3 * time.Second
	modeRetryInterval = 250 * time.Millisecond
)

// setMode sets the mode again until it is active, a user of the GPU can be named, or transientUse has passed.
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
		got, err = h.Driver.CompleteInstance(ctx, id, in.ID, a.Compute)
	} else {
		got, err = h.Driver.CreateInstance(ctx, id, gpu.NewInstance{ProfileID: a.ProfileID, Placement: a.Placement, Compute: a.Compute})
	}
	if err != nil {
		return h.explainInUse(ctx, err, op, id, snap, in)
	}
	if got.ProfileID != a.ProfileID || got.Placement != a.Placement || !a.complete(got) {
		return h.destroyOther(ctx, id, op, in, got)
	}
	if slices.ContainsFunc(got.Compute, func(c gpu.ComputeInstance) bool { return c.UUID == "" }) && in == nil {
		// No lease could use it: CUDA finds an instance by the UUID.
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w: %w", gpu.ErrUnknown, snap.MIG.Missing.NoDevice())}
	}
	return nil
}

// destroyOther destroys what the driver created instead of the requested instance: it is of no layout, and no undo would find
// it. An instance that was there before is not destroyed.
func (h *Handler) destroyOther(ctx context.Context, id gpu.UUID, op string, before *gpu.Instance, got gpu.Instance) error {
	created := fmt.Sprintf(
		"%s with %d compute instances", Placed{Name: fmt.Sprintf("profile %d", got.ProfileID), Placement: got.Placement},
		len(got.Compute),
	)
	if before != nil {
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w: the instance is %s instead", gpu.ErrUnknown, created)}
	}
	if err := h.Driver.DestroyInstance(ctx, id, got.ID); err != nil {
		return &gpu.Error{
			Op:  op,
			GPU: id,
			Err: fmt.Errorf("%w: the driver created %s instead, which is left: %w", gpu.ErrUnknown, created, err),
		}
	}
	return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w: the driver created %s instead, which was destroyed", gpu.ErrUnknown, created)}
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
		// The driver would refuse too, but only after it has destroyed the idle compute instances.
		return &gpu.Error{Op: op, GPU: id, Err: fmt.Errorf("%w%s", gpu.ErrInUse, h.inUseByText(ctx, snap, in))}
	}
	err = h.Driver.DestroyInstance(ctx, id, in.ID)
	if err == nil || errors.Is(err, gpu.ErrNotFound) {
		return nil
	}
	return h.explainInUse(ctx, err, op, id, snap, in)
}

// find reads the GPU and returns the instance of this profile at this placement, nil when there is none.
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

// complete reports whether an instance has exactly the compute instances that these arguments request.
func (a InstanceArgs) complete(in gpu.Instance) bool {
	ok, missing := computeFits(in.Compute, a.Compute, a.Slices)
	return ok && len(missing) == 0
}

// isPartOf reports whether an instance is the one of these arguments, perhaps partly created or partly destroyed. An
// instance at the same placement with other compute instances is a different one.
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

// inStepTerms returns a driver's error with the operation of the step.
func inStepTerms(err error, op string, id gpu.UUID) error {
	e, ok := errors.AsType[*gpu.Error](err)
	if !ok {
		return fmt.Errorf("cannot %s on %s: %w", op, id, err)
	}
	return &gpu.Error{Op: op, GPU: id, Code: e.Code, Err: e.Err}
}

// explainInUse returns a driver's error with the operation of the step and, when the reason is use, with the users.
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

// inUseByText names the users of a GPU, or of one of its instances: " by pid 12 (python), pid 13 (exporter)".
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
	return fmt.Errorf("cannot carry out a step of kind %q: unknown MIG step kind", kind)
}
