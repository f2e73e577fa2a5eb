package control

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// RestartHandler carries out steps of kind mps.restart.
type RestartHandler struct{ *Handler }

// Applied reports whether another control daemon runs as desired.
func (h RestartHandler) Applied(ctx context.Context, s step.Step) (bool, error) {
	a, err := mps.Decode[mps.RestartArgs](s.Args)
	if err != nil {
		return false, err
	}
	done, err := h.isRunning(ctx, a.Settings)
	if !done || err != nil {
		return false, err
	}
	st := h.Supervisor.observeNow(ctx, a.Settings.Device())
	return st.Healthy() && (st.PID != a.PID || st.Start != a.Start), nil
}

// Do replaces the control daemon.
func (h RestartHandler) Do(ctx context.Context, s step.Step) error {
	a, err := mps.Decode[mps.RestartArgs](s.Args)
	if err != nil {
		return err
	}
	if err := h.setMode(ctx, a.Settings, false); err != nil {
		return fmt.Errorf("cannot restart MPS on %s: %w", a.Settings.Device(), err)
	}
	if err := h.Supervisor.Start(ctx, a.Settings); err != nil {
		return h.restoreAfterFailure(ctx, a.Settings.Device(), err)
	}
	return nil
}

// Undo does nothing: the settings are those of before, and a control daemon that did not start is started again later.
func (h RestartHandler) Undo(context.Context, step.Step) error { return nil }
