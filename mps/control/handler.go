package control

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// ComputeModes reads and sets the compute mode of a GPU.
type ComputeModes interface {
	Snapshot(ctx context.Context, id gpu.UUID) (gpu.Snapshot, error)
	SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error
}

// Handler carries out steps of both kinds.
type Handler struct {
	Supervisor *Supervisor
	Driver     ComputeModes
}

// Applied reports, from what runs, whether a step is done.
func (h *Handler) Applied(ctx context.Context, s step.Step) (bool, error) {
	switch s.Kind {
	case mps.KindStart:
		a, err := mps.Decode[mps.StartArgs](s.Args)
		if err != nil {
			return false, err
		}
		return h.isRunning(ctx, a.Settings)
	case mps.KindStop:
		a, err := mps.Decode[mps.StopArgs](s.Args)
		if err != nil {
			return false, err
		}
		return h.Supervisor.observeNow(ctx, a.Device()) == nil, nil
	}
	return false, unknownKind(s)
}

// Do carries a step out, also one that was interrupted.
func (h *Handler) Do(ctx context.Context, s step.Step) error {
	switch s.Kind {
	case mps.KindStart:
		a, err := mps.Decode[mps.StartArgs](s.Args)
		if err != nil {
			return err
		}
		return h.start(ctx, a.Settings, a.KeepServer, false)
	case mps.KindStop:
		a, err := mps.Decode[mps.StopArgs](s.Args)
		if err != nil {
			return err
		}
		if err := h.stop(ctx, a.Device()); err != nil {
			return err
		}
		h.Supervisor.forgive(a.Device())
		return nil
	}
	return unknownKind(s)
}

// Undo restores what ran before a step.
func (h *Handler) Undo(ctx context.Context, s step.Step) error {
	switch s.Kind {
	case mps.KindStart:
		u, err := mps.Decode[mps.StartUndo](s.Undo)
		if err != nil {
			return err
		}
		a, err := mps.Decode[mps.StartArgs](s.Args)
		if err != nil {
			return err
		}
		if u.Previous != nil {
			return h.start(ctx, *u.Previous, a.KeepServer, true)
		}
		return h.stop(ctx, a.Settings.Device())
	case mps.KindStop:
		u, err := mps.Decode[mps.StopUndo](s.Undo)
		if err != nil || u.Settings == nil {
			return err
		}
		return h.start(ctx, *u.Settings, false, true)
	}
	return unknownKind(s)
}

// isRunning reports whether MPS runs with the settings, including the compute mode.
func (h *Handler) isRunning(ctx context.Context, set mps.Settings) (bool, error) {
	st := h.Supervisor.observeNow(ctx, set.Device())
	if !st.Healthy() || st.Settings == nil || *st.Settings != set {
		return false, nil
	}
	if !set.DenyBypass {
		return true, nil
	}
	snap, err := h.Driver.Snapshot(ctx, set.GPU)
	if err != nil {
		return false, err
	}
	return snap.ComputeMode == gpu.ComputeExclusiveProcess, nil
}

// start sets the compute mode and starts MPS, or sets up the control daemon that runs. With keep it stops
// nothing that runs. The previous mode is on disk before the mode is changed.
func (h *Handler) start(ctx context.Context, set mps.Settings, keep, undo bool) error {
	managed, running, err := h.Supervisor.manages(ctx, set)
	if err != nil {
		return err
	}
	if keep && running && !managed {
		return fmt.Errorf(
			"cannot start MPS on %s: processes of a control daemon run by now, and a start would stop its clients", set.Device(),
		)
	}
	if err := h.setMode(ctx, set, undo); err != nil {
		if managed {
			return err
		}
		return h.restoreAfterFailure(ctx, set.Device(), err)
	}
	if managed && (keep || greet(ctx, h.Supervisor.layout(set.Device()).pipe()) == nil) {
		return h.Supervisor.Correct(ctx, set)
	}
	if err := h.Supervisor.Start(ctx, set); err != nil {
		return h.restoreAfterFailure(ctx, set.Device(), err)
	}
	return nil
}

// setMode sets the compute mode of the settings: exclusive-process, or the one from before it. undo: it is set also where it reads back,
// as in restoreMode.
func (h *Handler) setMode(ctx context.Context, set mps.Settings, undo bool) error {
	if !set.DenyBypass {
		return h.restoreMode(ctx, set.Device())
	}
	snap, err := h.Driver.Snapshot(ctx, set.GPU)
	if err != nil {
		return err
	}
	if err := h.Supervisor.keepPrevious(set.GPU, snap.ComputeMode); err != nil {
		return err
	}
	if snap.ComputeMode == gpu.ComputeExclusiveProcess && !undo {
		return nil
	}
	return h.setAgain(ctx, set.GPU, snap.ComputeMode, gpu.ComputeExclusiveProcess)
}

// setAgain sets a compute mode also where it reads back. There a refusal is no failure: the driver was to carry out the changes in order,
// and has nothing more to do. A call that was not answered is one.
func (h *Handler) setAgain(ctx context.Context, id gpu.UUID, is, mode gpu.ComputeMode) error {
	err := h.Driver.SetComputeMode(ctx, id, mode)
	if err != nil && is == mode && ctx.Err() == nil && !gpu.IsAny(err, gpu.ErrTimeout, gpu.ErrStuck) {
		return nil
	}
	return err
}

// restoreMode restores the compute mode from before setMode. It is set also where it reads back: a call that was not answered may have
// its effect later, and the driver carries out the changes of one GPU in order. An instance has no mode of its own.
func (h *Handler) restoreMode(ctx context.Context, d mps.Device) error {
	if d.IsInstance() {
		return nil
	}
	id := d.GPU
	p, err := h.Supervisor.previous().Get(id)
	if p == nil || err != nil {
		return err
	}
	snap, err := h.Driver.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	boot, err := procfs.BootID("/")
	if err != nil {
		return err
	}
	if p.applies(boot, snap.ComputeMode) {
		if err := h.setAgain(ctx, id, snap.ComputeMode, p.Mode); err != nil {
			return err
		}
	}
	return h.Supervisor.previous().Forget(id)
}

// restoreAfterFailure restores the compute mode after a failed start, which has already stopped what it had started.
func (h *Handler) restoreAfterFailure(ctx context.Context, d mps.Device, why error) error {
	if err := h.restore(ctx, d); err != nil {
		return fmt.Errorf("%w; and %w", why, err)
	}
	return why
}

func (h *Handler) stop(ctx context.Context, d mps.Device) error {
	if err := h.Supervisor.Stop(ctx, d); err != nil {
		return err
	}
	return h.restore(ctx, d)
}

// restore restores the compute mode, and then removes the files of a device whose MPS was stopped.
func (h *Handler) restore(ctx context.Context, d mps.Device) error {
	if err := h.restoreMode(ctx, d); err != nil {
		return err
	}
	return h.Supervisor.Forget(d)
}

func unknownKind(s step.Step) error {
	return fmt.Errorf("cannot carry out a step of kind %q: unknown MPS step kind", s.Kind)
}
