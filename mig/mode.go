package mig

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// Mode is a planned change of MIG mode.
type Mode struct {
	On    bool // wanted
	Was   bool // what undo goes back to
	Reset bool // the GPU must be reset for it: all that runs on this GPU is lost, and authority was given
	// Stops run on the GPU and are stopped first. Empty without Force.
	Stops []step.Subject
}

// ResetRequired refuses a mode change that only a reset makes active, which nobody allowed.
type ResetRequired struct{ On bool }

// Error says what needs the reset and how to allow it.
func (e *ResetRequired) Error() string {
	return fmt.Sprintf("cannot turn %s MIG mode: this GPU needs a reset for it; allow it with --allow-reset", onOff(e.On))
}

// Unwrap gives gpu.ErrResetRequired.
func (*ResetRequired) Unwrap() error { return gpu.ErrResetRequired }

// InUse refuses a mode change of a GPU that somebody holds.
type InUse struct {
	On          bool
	By          []step.Subject
	Unstoppable bool // no authority stops these
}

// Error names the holders.
func (e *InUse) Error() string {
	if e.Unstoppable {
		return fmt.Sprintf("cannot turn %s MIG mode: the GPU is in use by %s", onOff(e.On), step.Join(e.By))
	}
	return fmt.Sprintf("cannot turn %s MIG mode: the GPU is in use by %s; --force stops them", onOff(e.On), step.Join(e.By))
}

// Unwrap gives gpu.ErrInUse where --force would help.
func (e *InUse) Unwrap() error {
	if e.Unstoppable {
		return nil
	}
	return gpu.ErrInUse
}

// PlanMode says what must happen for MIG mode to be as wanted: nil when it already is. holders are those who run on the
// GPU now. A driver that does not tell whether a reset is needed is taken to need one.
func PlanMode(m gpu.MIGState, on bool, inUseBy []step.Subject, o Options) (*Mode, error) {
	switch {
	case m.Current == on && m.Pending == on:
		return nil, nil
	case !m.Capable:
		return nil, &Infeasible{Reason: "this GPU has no MIG"}
	}
	mode := &Mode{On: on, Was: m.Current}
	if m.Current == on {
		return mode, nil // only a pending change is taken back: nobody notices
	}
	if len(inUseBy) != 0 && !o.Force {
		return nil, &InUse{On: on, By: inUseBy}
	}
	mode.Stops = inUseBy
	mode.Reset = m.Resetless == nil || !*m.Resetless
	if mode.Reset && !o.AllowReset {
		return nil, &ResetRequired{On: on}
	}
	return mode, nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
