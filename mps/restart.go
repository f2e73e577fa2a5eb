package mps

import (
	"context"
	"fmt"

	"github.com/gpushare/gpushare/internal/step"
)

// KindRestart is a restart that an administrator requests, also of a control daemon that works.
const KindRestart = "mps.restart"

// RestartArgs is for mps.restart: another control daemon than the named one runs with these settings.
type RestartArgs struct {
	Settings Settings `json:"settings"`
	PID      int      `json:"pid,omitempty"`   // of the control daemon that is replaced; 0 if none runs
	Start    uint64   `json:"start,omitempty"` // clock ticks since boot
}

// RestartStep plans the restart of MPS on a GPU. It disturbs the clients.
func RestartStep(set Settings, o Observed) step.Step {
	args := RestartArgs{Settings: set}
	if o.State == nil {
		o.State = &State{}
	}
	args.PID, args.Start = o.State.PID, o.State.Start
	s := step.Step{
		Kind: KindRestart, GPU: string(set.GPU), Phase: step.GrantAccess, Args: step.Must(args),
		Text: "restart MPS", Reason: "an administrator requests it",
	}
	s.Disruption, s.Disturbs = disturbedClients(o)
	return s
}

// RestartHandler carries out steps of kind mps.restart.
type RestartHandler struct{ *Handler }

// Applied reports whether another control daemon runs as desired.
func (h RestartHandler) Applied(ctx context.Context, s step.Step) (bool, error) {
	a, err := decode[RestartArgs](s.Args)
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
	a, err := decode[RestartArgs](s.Args)
	if err != nil {
		return err
	}
	if err := h.setMode(ctx, a.Settings); err != nil {
		return fmt.Errorf("cannot restart MPS on %s: %w", a.Settings.Device(), err)
	}
	if err := h.Supervisor.Start(ctx, a.Settings); err != nil {
		return h.restoreAfterFailure(ctx, a.Settings.Device(), err)
	}
	return nil
}

// Undo does nothing: the settings are those of before, and a control daemon that did not start is started again later.
func (h RestartHandler) Undo(context.Context, step.Step) error { return nil }
