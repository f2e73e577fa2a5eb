package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// Services stops systemd units around a change, and starts them again.
type Services interface {
	// UnitActive reports whether a unit runs, starts or stops; cgroup.ErrNotFound for an unknown unit.
	UnitActive(ctx context.Context, unit string) (bool, error)
	// UnitRuns is the same without a unit that stops: a stop that was not answered in time goes on.
	UnitRuns(ctx context.Context, unit string) (bool, error)
	// StopUnit stops a unit and returns when it is stopped.
	StopUnit(ctx context.Context, unit string) error
	// StartUnit starts a unit and returns when it runs.
	StartUnit(ctx context.Context, unit string) error
}

// unitTimeout is the deadline for the stop of one unit: by default systemd kills it after 90 s.
const unitTimeout = 2 * time.Minute

// StepTimeout is the deadline of one step. It is longer than that of a driver call.
func (cs *Changes) StepTimeout(s step.Step) time.Duration {
	if s.Kind == planner.KindUnitStop {
		return unitTimeout
	}
	return max(time.Minute, 2*cs.Settings.ChangeTimeout)
}

// Quiesce plans the stop and the later start of the services of node.quiesce that have a GPU open whose MIG partition the
// steps change. Other units of the list (sockets, timers) could start those services: they are stopped with them.
func (cs *Changes) Quiesce(
	ctx context.Context, want *state.Desired, use planner.Usage, steps []step.Step,
) (planner.QuiescePlan, error) {
	var q planner.QuiescePlan
	if want.Spec == nil || len(want.Spec.Node.Quiesce) == 0 {
		return q, nil
	}
	changed := planner.Partitioned(steps)
	if len(changed) == 0 {
		return q, nil
	}
	if cs.Services == nil {
		q.Warnings = append(q.Warnings, planner.NoServiceManager)
		return q, nil
	}
	using := planner.UnitsOf(use, changed)
	var services, triggers []string
	for _, unit := range want.Spec.Node.Quiesce {
		switch {
		case !strings.HasSuffix(unit, ".service"):
			triggers = append(triggers, unit)
		case using[unit] || !use.OpenDevices.Complete:
			services = append(services, unit)
		}
	}
	if len(services) == 0 {
		return q, nil
	}
	for _, unit := range slices.Concat(triggers, services) {
		active, err := cs.Services.UnitActive(ctx, unit)
		if errors.Is(err, cgroup.ErrNotFound) {
			q.Warnings = append(q.Warnings, "node.quiesce: there is no unit "+unit)
			continue
		}
		if err != nil {
			return q, &api.Error{
				Kind:    api.KindUnavailable,
				Message: "cannot read whether " + unit + " runs: " + err.Error(),
				Hint:    "nothing was changed; node.quiesce names it",
			}
		}
		if active {
			stop, start := planner.UnitSteps(unit)
			q.Stop, q.Start = append(q.Stop, stop), append(q.Start, start)
		}
	}
	slices.Reverse(q.Start)
	return q, nil
}

// QuiesceUnit carries out the steps that stop and start units.
type QuiesceUnit struct{ D *Changes }

// Applied reports whether the unit is stopped, or started.
func (h QuiesceUnit) Applied(ctx context.Context, s step.Step) (bool, error) {
	unit, err := h.unit(s)
	if err != nil {
		return false, err
	}
	starts := s.Kind == planner.KindUnitStart
	read := h.D.Services.UnitActive
	if starts {
		read = h.D.Services.UnitRuns
	}
	is, err := read(ctx, unit)
	if errors.Is(err, cgroup.ErrNotFound) {
		return true, nil // It was removed from the host meanwhile and cannot be started.
	}
	return err == nil && is == starts, err
}

// Do stops the unit, or starts it again.
func (h QuiesceUnit) Do(ctx context.Context, s step.Step) error {
	unit, err := h.unit(s)
	if err != nil {
		return err
	}
	if s.Kind == planner.KindUnitStart {
		return h.D.Services.StartUnit(ctx, unit)
	}
	return h.D.Services.StopUnit(ctx, unit)
}

// Undo starts a stopped unit. A started unit keeps running.
func (h QuiesceUnit) Undo(ctx context.Context, s step.Step) error {
	unit, err := h.unit(s)
	if err != nil || s.Kind != planner.KindUnitStop {
		return err
	}
	return h.D.Services.StartUnit(ctx, unit)
}

func (h QuiesceUnit) unit(s step.Step) (string, error) {
	var a planner.UnitArgs
	if err := json.Unmarshal(s.Args, &a); err != nil {
		return "", fmt.Errorf("cannot read the unit of a step: %w", err)
	}
	if h.D.Services == nil {
		return "", fmt.Errorf("cannot reach %s: systemd does not run", a.Unit)
	}
	return a.Unit, nil
}

// stoppedUnits are the units that a change stopped and that are not known to run now: one that still stops, and one that cannot be
// read, would remain stopped.
func (cs *Changes) stoppedUnits(ctx context.Context, r *engine.Record) []string {
	var out []string
	for _, s := range r.Steps {
		if s.Kind != planner.KindUnitStart {
			continue
		}
		unit, err := (QuiesceUnit{cs}).unit(s)
		if err != nil {
			continue
		}
		if runs, err := cs.Services.UnitRuns(ctx, unit); !runs && !errors.Is(err, cgroup.ErrNotFound) {
			out = append(out, unit)
		}
	}
	return out
}

// startTimeout is the deadline for the start of units outside of a change.
const startTimeout = 20 * time.Second

// startStoppedUnits starts the units of an interrupted change, so that they do not stay stopped while the daemon is stopped.
// The resumed change stops them again.
func (cs *Changes) startStoppedUnits(ctx context.Context, r *engine.Record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	for _, unit := range cs.stoppedUnits(ctx, r) {
		if err := cs.Services.StartUnit(ctx, unit); err != nil {
			cs.Log.Error("cannot start a unit that was stopped for a change", "unit", unit, "error", err)
		}
	}
}

// RestartUnits retries to start the units that a change stopped and could not start.
func (cs *Changes) RestartUnits(ctx context.Context) {
	units := cs.State.Stored().StoppedUnits
	conditions := map[string]api.Condition{}
	defer func() { cs.Conditions.Replace("quiesce", conditions) }()
	if len(units) == 0 || cs.State.Changing() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var failing []string
	for _, unit := range units {
		err := errors.New("systemd does not run")
		if cs.Services != nil {
			err = cs.Services.StartUnit(ctx, unit)
		}
		if err == nil || errors.Is(err, cgroup.ErrNotFound) {
			continue
		}
		failing = append(failing, unit)
		conditions[unit] = api.Condition{
			Message: unit + " was stopped for a change and does not start again: " + err.Error(),
			Hint:    "the start is retried with every pass; see 'systemctl status " + unit + "'",
		}
	}
	if len(failing) == len(units) {
		return
	}
	if err := cs.State.Store.Update(func(s *store.State) error { s.StoppedUnits = failing; return nil }); err != nil {
		cs.Log.Error("cannot record that units were started", "error", err)
	}
}
