package mig

import (
	"fmt"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// Mode is a planned change of MIG mode.
type Mode struct {
	On    bool // desired
	Was   bool // what undo restores
	Reset bool // the GPU must be reset, which ends all work on it; the reset was allowed
	// Stops use the GPU and are stopped first. Empty without Force.
	Stops []step.Subject
}

// ResetRequired refuses a mode change that needs a reset of the GPU when a reset was not allowed.
type ResetRequired struct{ On bool }

// Error names the change and the option that allows the reset.
func (e *ResetRequired) Error() string {
	return fmt.Sprintf("cannot turn %s MIG mode: this GPU must be reset for it; add --allow-reset to allow that", onOff(e.On))
}

// Unwrap returns gpu.ErrResetRequired.
func (*ResetRequired) Unwrap() error { return gpu.ErrResetRequired }

// AfterBoot is the error of a mode change that the driver accepted and cannot make current: a reset is needed, and the driver cannot
// reset this GPU, as in a virtual machine. The driver keeps the mode, so a boot makes it current.
type AfterBoot struct{ On bool }

// Error says what turns the mode on or off.
func (e *AfterBoot) Error() string {
	return fmt.Sprintf("MIG mode was accepted and is turned %s by the next boot of the host: the driver cannot reset this GPU", onOff(e.On))
}

// Unwrap returns step.ErrAfterBoot and gpu.ErrResetRequired.
func (*AfterBoot) Unwrap() []error { return []error{step.ErrAfterBoot, gpu.ErrResetRequired} }

// InUse refuses a mode change of a GPU that is in use.
type InUse struct {
	On          bool
	By          []step.Subject
	Unstoppable bool // no authority may stop these
	Reset       bool // the change also needs a reset, which was not allowed
}

// Error names the users of the GPU.
func (e *InUse) Error() string {
	if e.Unstoppable {
		return fmt.Sprintf("cannot turn %s MIG mode: the GPU is in use by %s", onOff(e.On), step.Join(e.By))
	}
	return fmt.Sprintf("cannot turn %s MIG mode: the GPU is in use by %s; --force stops them", onOff(e.On), step.Join(e.By))
}

// Unwrap returns gpu.ErrInUse where --force would help.
func (e *InUse) Unwrap() error {
	if e.Unstoppable {
		return nil
	}
	return gpu.ErrInUse
}

// PlanMode returns the change that MIG mode needs, nil when it is as desired. inUseBy are the users of the GPU. When the
// driver does not report whether a reset is needed, a reset is assumed.
func PlanMode(m gpu.MIGState, on bool, inUseBy []step.Subject, o Options) (*Mode, error) {
	switch {
	case m.Current == on && m.Pending == on:
		return nil, nil
	case !m.Capable:
		return nil, &Infeasible{Reason: "this GPU does not support MIG"}
	}
	mode := &Mode{On: on, Was: m.Current}
	if m.Current == on {
		return mode, nil // only a pending change is cancelled, which disturbs no process
	}
	mode.Reset = m.Resetless == nil || !*m.Resetless
	if len(inUseBy) != 0 && !o.Force {
		return nil, &InUse{On: on, By: inUseBy, Reset: mode.Reset && !o.AllowReset}
	}
	mode.Stops = inUseBy
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
