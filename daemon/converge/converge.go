package converge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// wakeSpacing is the least time between two looks that somebody asked for.
const wakeSpacing = 200 * time.Millisecond

// watchdogInterval is how often the converge loop tells the watchdog that it advances. A step may take a minute: the unit's
// WatchdogSec is longer than that.
const watchdogInterval = 20 * time.Second

// Run follows the node until ctx ends, and returns when all that it started has ended.
func (cv *Converger) Run(ctx context.Context) {
	var loops loop.Group
	loops.Go(func() { cv.convergeLoop(ctx) })
	loops.Go(func() { cv.eventLoop(ctx) })
	loops.Wait()
}

// convergeLoop looks at the node on a timer and when somebody asks, and mends what needs no authority.
func (cv *Converger) convergeLoop(ctx context.Context) {
	notified := time.Now()
	due := notified.Add(cv.ConvergeInterval())
	for {
		woken, ok := cv.Signal.Sleep(ctx, min(time.Until(due), time.Until(notified.Add(watchdogInterval))))
		if !ok {
			return
		}
		if time.Since(notified) >= watchdogInterval {
			_ = cv.Notify.Watchdog() // Nobody watches, or it is told.
			notified = time.Now()
		}
		if !woken && time.Now().Before(due) {
			continue
		}
		due = time.Now().Add(cv.ConvergeInterval())
		cv.Pass(ctx)
		loop.Pause(ctx, wakeSpacing) // So that many kicks make few looks.
	}
}

// Pass is one look of the loop, with all that follows from it.
func (cv *Converger) Pass(ctx context.Context) {
	observeCtx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	cv.Observer.Observe(observeCtx)
	// First what is gone is taken from whoever may open it: what is made anew in its place has the same numbers.
	if err := cv.Correct(observeCtx); err != nil && ctx.Err() == nil {
		cv.Log.Warn("cannot converge", "error", err)
	}
	cv.Changes.Restore(cv.Observer.Last())
	cv.recordMissing(cv.Observer.Last()) // After it: what a reset took comes back by a change, which is under way now.
	cv.Refresh(ctx, cv.Observer.Last())
	cv.Changes.RestartUnits(ctx)
	cv.Identities.WakeNames()
}

// Correct carries out the soft steps that are due by the last observation, unless a change is under way: a change takes
// access away before it touches the hardware and gives it after, and what is mended in between would give it too early.
func (cv *Converger) Correct(ctx context.Context) error {
	return cv.State.Correct(func() error { return cv.convergeOn(ctx, cv.Observer.Last()) }) // A change converges at its end.
}

// Converge looks and mends once, as the end of a change.
func (cv *Converger) Converge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout+30*time.Second)
	defer cancel()
	return cv.convergeOn(ctx, cv.Observer.Observe(ctx))
}

// convergeOn carries out the soft steps that are due. It never takes a disruptive one: only a change carries authority.
func (cv *Converger) convergeOn(ctx context.Context, node *observe.Node) error {
	cv.Counters.Converges.Add(1)
	want := cv.State.Desired()
	if !want.Enforcing() {
		return nil
	}
	cv.Attribution.RecordRates(node)
	filterErr := cv.correctLoginFilters(ctx, want, node)
	cv.correctScopes(ctx, node)
	in := cv.Policy.NodeInput(want, node, nil)
	nodeSteps, err := planner.PlanSlicesAndMPS(want, node, in)
	if err != nil {
		return errors.Join(filterErr, err)
	}
	found, steps := cv.driftOf(want, node), slices.Concat(nodeSteps.Before, planner.PlanMigration(want, in.MigrationDenied), nodeSteps.After)
	skipped := disruptive(steps)
	err = cv.carryOut(ctx, steps)
	cv.reportDrift(want, found, skipped)
	return errors.Join(filterErr, err)
}

// disruptive is the steps that the loop has no authority for.
func disruptive(steps []step.Step) []step.Step {
	return slices.DeleteFunc(slices.Clone(steps), func(s step.Step) bool { return s.Disruption != step.Running })
}

// carryOut carries out what of the steps disturbs nobody.
func (cv *Converger) carryOut(ctx context.Context, steps []step.Step) error {
	steps = planner.Number(slices.DeleteFunc(steps, func(s step.Step) bool { return s.Disruption == step.Running }))
	if len(steps) == 0 {
		return nil
	}
	out := cv.Engine.Converge(ctx, steps, engine.Hooks{Progress: func(p engine.Progress) {
		if p.State == engine.Done && !p.Skipped {
			cv.Counters.Steps.Add(1)
		}
	}})
	cv.Observer.Observe(ctx)
	var errs []error
	for id, l := range out {
		if l.State != engine.Reached {
			errs = append(errs, fmt.Errorf("%s%s", prefix(id), l.Reason))
		}
	}
	return errors.Join(errs...)
}

func prefix(id string) string {
	if id == "" {
		return ""
	}
	return id + ": "
}

// Refresh makes a new observation known to those who decide and show, and to container runtimes: whoever waited for a
// change starts a container next.
func (cv *Converger) Refresh(ctx context.Context, node *observe.Node) {
	cv.Table.Update(planner.View(cv.State, node))
	cv.updateReserved()
	cv.updateConditions(node)
	cv.Policy.WriteCDI(ctx)
	cv.Invalidate()
}

// updateConditions turns what was observed into conditions.
func (cv *Converger) updateConditions(node *observe.Node) {
	want := cv.State.Desired()
	driver := map[string]api.Condition{}
	if node.DriverErr != nil {
		e := report.DriverError(node.DriverErr)
		driver[""] = api.Condition{Message: e.Message, Hint: e.Hint}
	}
	cv.Conditions.Replace("driver", driver)
	held, drift, foreign, gpus := map[string]api.Condition{}, map[string]api.Condition{}, map[string]api.Condition{}, map[string]api.Condition{}
	for id, why := range cv.State.Held() {
		name := string(id)
		if g, ok := node.GPU(id); ok {
			name = fmt.Sprint(g.Identity.Index)
		}
		held[string(id)] = api.Condition{GPU: string(id), Message: "held: " + why, Hint: "correct the cause, then 'gpushare gpu retry " + name + "'"}
	}
	busy := map[gpu.UUID]bool{}
	if ch := cv.State.Changing(); ch != nil {
		busy = ch.GPUs
	}
	use := cv.Attribution.Usage()
	use.IgnoreKept = true
	hardware := planner.PlanGPUs(want, node, use, planner.Authority{Force: true, AllowReset: true})
	due := map[gpu.UUID][]string{}
	for i := range hardware.Steps {
		due[gpu.UUID(hardware.Steps[i].GPU)] = append(due[gpu.UUID(hardware.Steps[i].GPU)], hardware.Steps[i].Text)
	}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if g.Err != nil && node.DriverErr == nil {
			name := fmt.Sprint(g.Identity.Index)
			if g.Identity.Index < 0 {
				name = string(id) // It has not told its number in this life of the daemon.
			}
			gpus[string(id)] = api.Condition{GPU: string(id), Message: fmt.Sprintf("GPU %s: %v", name, g.Err), Hint: "'gpushare gpu retry " + name + "' tries it again; its neighbours are not affected"}
		}
		if !want.Manages(id) || busy[id] || held[string(id)].Message != "" || g.Err != nil {
			continue // Of one that does not answer, only what it was before is known.
		}
		if len(due[id]) > 0 && want.Enforcing() {
			drift[string(id)] = api.Condition{GPU: string(id), Message: fmt.Sprintf("GPU %d is not as the spec says: an apply would %s", g.Identity.Index, strings.Join(due[id], ", ")), Hint: "somebody changed it outside gpushare; 'gpushare apply' puts it right"}
		}
		for j := range g.Instances {
			if in := &g.Instances[j]; want.Enforcing() && !cv.State.ManagesInstance(id, in) {
				foreign[fmt.Sprint(id, in.Placement)] = api.Condition{GPU: string(id), Message: fmt.Sprintf("GPU %d: %s at %d is not managed by gpushare", g.Identity.Index, planner.ProfileName(g.Profiles, in.ProfileID), in.Placement.Start), Hint: fmt.Sprintf("it is left alone, and nobody gets a lease on it; 'gpushare mig import %d %d' makes it gpushare's, 'gpushare mig remove %d %d' takes it away", g.Identity.Index, in.Placement.Start, g.Identity.Index, in.Placement.Start)}
			}
		}
	}
	if want.Enforcing() {
		maps.Copy(drift, cv.Drift.uncorrectedNow())
	}
	cv.Conditions.Replace("held", held)
	cv.Conditions.Replace("drift", drift)
	cv.addForeignSlices(want, node, foreign)
	cv.Conditions.Replace("foreign", foreign)
	cv.Conditions.Replace("gpu", gpus)
	cv.updateIsolationConditions(want, node)
	cv.updateUnmanageConditions(want, node)
}

// eventLoop follows the driver's events. It ends with ctx; a driver that has none is asked again now and then.
func (cv *Converger) eventLoop(ctx context.Context) {
	for ctx.Err() == nil {
		err := cv.Driver.Events(ctx, func(e gpu.Event) {
			switch e.Kind {
			case gpu.EventXID:
				cv.Events.Publish(api.Event{Kind: "gpu.xid", GPU: string(e.GPU), Message: fmt.Sprintf("XID %d", e.XID)})
			case gpu.EventMIGConfig, gpu.EventECC, gpu.EventLost:
				cv.Events.Publish(api.Event{Kind: "gpu." + string(e.Kind), GPU: string(e.GPU), Message: string(e.Kind)})
			}
			cv.Wake()
		})
		if ctx.Err() != nil {
			return
		}
		cv.Log.Debug("the driver's events ended", "error", err)
		cv.Wake() // The driver may have gone and come back, with nothing on its GPUs.
		loop.Pause(ctx, cv.ConvergeInterval())
	}
}
