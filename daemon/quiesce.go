package daemon

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
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/systemd"
)

// services stops units of the host's around a change, and starts them again.
type services interface {
	// UnitActive tells whether a unit runs; cgroup.ErrNotFound when there is none of that name.
	UnitActive(ctx context.Context, unit string) (bool, error)
	// StopUnit stops a unit and returns when it has ended.
	StopUnit(ctx context.Context, unit string) error
	// StartUnit starts a unit and returns when it runs.
	StartUnit(ctx context.Context, unit string) error
}

var _ services = (*systemd.Adapter)(nil)

// The kinds of step that quiesce units. That the one is in a change's record says which units ran before it.
const (
	KindUnitStop  = "unit.stop"
	KindUnitStart = "unit.start"
)

// unitArgs are the arguments of both.
type unitArgs struct {
	Unit string `json:"unit"`
}

// unitTimeout bounds the stop of one unit: systemd gives it 90 s by itself before it is killed.
const unitTimeout = 2 * time.Minute

// stepTimeout is how long one step may take: what the driver may, or longer.
func (d *Changes) stepTimeout(s step.Step) time.Duration {
	if s.Kind == KindUnitStop {
		return unitTimeout
	}
	return max(time.Minute, 2*d.settings.Changes)
}

// quiet is what is done to units around a change.
type quiet struct {
	stop, start []step.Step
	warnings    []string
}

// planQuiesce has the units of node.quiesce stopped that have a GPU open whose MIG partition the steps change, and started
// again when all is done. Units that have no processes (sockets, timers) would only wake those up: they go with them.
func (d *Changes) planQuiesce(ctx context.Context, want *desired, use usage, steps []step.Step) (quiet, error) {
	var q quiet
	if want.spec == nil || len(want.spec.Node.Quiesce) == 0 {
		return q, nil
	}
	changed := partitioned(steps)
	if len(changed) == 0 {
		return q, nil
	}
	if d.services == nil {
		q.warnings = append(q.warnings, noServices)
		return q, nil
	}
	has := unitsOf(use, changed)
	var holding, wakers []string
	for _, unit := range want.spec.Node.Quiesce {
		switch {
		case !strings.HasSuffix(unit, ".service"):
			wakers = append(wakers, unit)
		case has[unit] || !use.opened.looked:
			holding = append(holding, unit)
		}
	}
	if len(holding) == 0 {
		return q, nil
	}
	for _, unit := range slices.Concat(wakers, holding) {
		active, err := d.services.UnitActive(ctx, unit)
		if errors.Is(err, cgroup.ErrNotFound) {
			q.warnings = append(q.warnings, "node.quiesce: there is no unit "+unit)
			continue
		}
		if err != nil {
			return q, &api.Error{Kind: api.KindUnavailable, Message: "cannot see whether " + unit + " runs: " + err.Error(), Hint: "nothing was changed; node.quiesce names it"}
		}
		if active {
			stop, start := unitSteps(unit)
			q.stop, q.start = append(q.stop, stop), append(q.start, start)
		}
	}
	slices.Reverse(q.start)
	return q, nil
}

// noServices says why units are not stopped.
const noServices = "node.quiesce: no unit is stopped around this change, because nothing here stops units: it takes systemd"

func unitSteps(unit string) (stop, start step.Step) {
	args := step.Must(unitArgs{unit})
	stop = step.Step{
		Kind: KindUnitStop, Phase: step.Narrow, Args: args, Undo: args, Text: "stop " + unit,
		Reason: "node.quiesce: it would be in the way of the change", Disruption: step.Idle,
	}
	start = step.Step{
		Kind: KindUnitStart, Phase: step.Widen, Args: args, Text: "start " + unit + " again",
		Reason: "it ran before", Disruption: step.None,
	}
	return stop, start
}

// partitioned are the GPUs whose MIG mode or instances some steps change.
func partitioned(steps []step.Step) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	for i := range steps {
		if strings.HasPrefix(steps[i].Kind, "mig.") {
			out[gpu.UUID(steps[i].GPU)] = true
		}
	}
	return out
}

// unitsOf are the units of the processes that have one of the GPUs, or an instance of it, open.
func unitsOf(use usage, gpus map[gpu.UUID]bool) map[string]bool {
	out := map[string]bool{}
	add := func(pids []int) {
		for _, pid := range pids {
			h := use.process(nil, pid)
			out[h.unit] = true
		}
	}
	for id := range gpus {
		add(use.opened.gpus[id])
	}
	for at, pids := range use.opened.caps {
		if gpus[at.gpu] {
			add(pids)
		}
	}
	return out
}

// quiesceUnit carries out the steps that stop and start units.
type quiesceUnit struct{ d *Changes }

// Applied tells whether the unit is stopped, or started.
func (h quiesceUnit) Applied(ctx context.Context, s step.Step) (bool, error) {
	unit, err := h.unit(s)
	if err != nil {
		return false, err
	}
	active, err := h.d.services.UnitActive(ctx, unit)
	if errors.Is(err, cgroup.ErrNotFound) {
		return true, nil // It was removed from the host meanwhile: nobody can start it any more.
	}
	return err == nil && active == (s.Kind == KindUnitStart), err
}

// Do stops the unit, or starts it again.
func (h quiesceUnit) Do(ctx context.Context, s step.Step) error {
	unit, err := h.unit(s)
	if err != nil {
		return err
	}
	if s.Kind == KindUnitStart {
		return h.d.services.StartUnit(ctx, unit)
	}
	return h.d.services.StopUnit(ctx, unit)
}

// Undo starts what was stopped. What was started stays.
func (h quiesceUnit) Undo(ctx context.Context, s step.Step) error {
	unit, err := h.unit(s)
	if err != nil || s.Kind != KindUnitStop {
		return err
	}
	return h.d.services.StartUnit(ctx, unit)
}

func (h quiesceUnit) unit(s step.Step) (string, error) {
	var a unitArgs
	if err := json.Unmarshal(s.Args, &a); err != nil {
		return "", fmt.Errorf("cannot read which unit it is: %w", err)
	}
	if h.d.services == nil {
		return "", fmt.Errorf("cannot reach %s: there is no systemd now", a.Unit)
	}
	return a.Unit, nil
}

// stoppedUnits are the units that a change stopped and that do not run now.
func (d *Changes) stoppedUnits(ctx context.Context, r *engine.Record) []string {
	var out []string
	for _, s := range r.Steps {
		if s.Kind != KindUnitStart {
			continue
		}
		unit, err := (quiesceUnit{d}).unit(s)
		if err != nil {
			continue
		}
		if active, err := d.services.UnitActive(ctx, unit); err == nil && !active {
			out = append(out, unit)
		}
	}
	return out
}

// wakeTimeout bounds the starting of units outside of a change.
const wakeTimeout = 20 * time.Second

// wakeUnits starts what a change stopped when it is cut short: what was stopped for us must not stay so for as long as the
// daemon is away. Whoever goes on with the change stops them once more.
func (d *Changes) wakeUnits(ctx context.Context, r *engine.Record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
	defer cancel()
	for _, unit := range d.stoppedUnits(ctx, r) {
		if err := d.services.StartUnit(ctx, unit); err != nil {
			d.Log.Error("a unit that was stopped for a change does not start again", "unit", unit, "error", err)
		}
	}
}

// restartUnits tries again to start the units that a change stopped and could not start.
func (d *Changes) restartUnits(ctx context.Context) {
	left := d.state.Kept().Stopped
	told := map[string]api.Condition{}
	defer func() { d.Conditions.replace("quiesce", told) }()
	if len(left) == 0 || d.state.Changing() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	var still []string
	for _, unit := range left {
		err := errors.New("there is no systemd now")
		if d.services != nil {
			err = d.services.StartUnit(ctx, unit)
		}
		if err == nil || errors.Is(err, cgroup.ErrNotFound) {
			continue
		}
		still = append(still, unit)
		told[unit] = api.Condition{
			Message: unit + " was stopped for a change and does not start again: " + err.Error(),
			Hint:    "it is tried again with every look at the node; 'systemctl status " + unit + "' says more",
		}
	}
	if len(still) == len(left) {
		return
	}
	if err := d.state.Store.Update(func(s *store.State) error { s.Stopped = still; return nil }); err != nil {
		d.Log.Error("cannot record that units were started again", "error", err)
	}
}

// checkQuiesce tells what of node.quiesce cannot be done here.
func (d *Viewer) checkQuiesce(ctx context.Context, want *desired, warn func(name, message, hint string)) {
	if want.spec == nil || len(want.spec.Node.Quiesce) == 0 {
		return
	}
	if d.services == nil {
		warn("quiesce", "the units of node.quiesce are not stopped around MIG changes: nothing here stops units, it takes systemd", "stop them by hand before such a change: "+strings.Join(want.spec.Node.Quiesce, ", "))
		return
	}
	for _, unit := range want.spec.Node.Quiesce {
		if _, err := d.services.UnitActive(ctx, unit); err != nil {
			warn("quiesce", "node.quiesce names "+unit+", which cannot be seen: "+err.Error(), "'systemctl status "+unit+"' says more; correct the name or remove it")
		}
	}
}
