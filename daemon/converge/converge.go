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
	"github.com/gpushare/gpushare/internal/text"
)

// wakeSpacing is the minimum time between two requested passes, and longWakeSpacing that of passes that take long: a large node has
// leases that end many times a second, and each asks for one.
const (
	wakeSpacing     = 200 * time.Millisecond
	longWakeSpacing = time.Second
)

// Run runs the loops until ctx ends, and returns when they have ended.
func (cv *Converger) Run(ctx context.Context) {
	var loops loop.Group
	loops.Go(func() { cv.convergeLoop(ctx) })
	loops.Go(func() { cv.eventLoop(ctx) })
	loops.Go(func() { cv.MPSAccess.Run(ctx) })
	loops.Go(func() { cv.MPSFaults.Run(ctx) })
	loops.Wait()
}

// sooner is how much sooner than after a success the watchdog is tried again.
const sooner = 8

// convergeLoop runs a pass on a timer and when it is woken. The watchdog is notified in the interval that the service manager
// asks for, and before each pass, which has the whole time of the watchdog then.
func (cv *Converger) convergeLoop(ctx context.Context) {
	interval := cv.Notify.WatchdogInterval()
	feed := time.Now().Add(interval)
	due := time.Now().Add(cv.ConvergeInterval())
	for {
		next := time.Until(due)
		if interval > 0 {
			next = min(next, time.Until(feed))
		}
		woken, ok := cv.Signal.Sleep(ctx, next)
		if !ok {
			return
		}
		pass := woken || !time.Now().Before(due)
		if interval > 0 && (pass || !time.Now().Before(feed)) {
			wait := interval
			if err := cv.Notify.Watchdog(); err != nil {
				cv.Log.Warn("cannot report to the service manager that the daemon works", "error", err)
				wait /= sooner
			}
			feed = time.Now().Add(wait)
		}
		if !pass {
			continue
		}
		began := time.Now()
		due = began.Add(cv.ConvergeInterval())
		cv.Pass(ctx)
		cv.say()
		loop.Pause(ctx, loop.Rest(time.Since(began), wakeSpacing, longWakeSpacing))
	}
}

// say reports to the service manager, in one line, what the node has, if that has changed.
func (cv *Converger) say() {
	list := cv.Table.List()
	waiting := 0
	for i := range list {
		if list[i].State == api.LeaseQueued {
			waiting++
		}
	}
	says := ""
	if !cv.State.Desired().Enforcing() {
		says = "only observes; "
	}
	gpus, live := text.Count(len(cv.Observer.Last().GPUs), "GPU"), text.Count(len(list)-waiting, "lease")
	says += gpus + ", " + live + ", " + text.Count(waiting, "request") + " waiting"
	if n := len(cv.Conditions.List()); n > 0 {
		says += "; " + text.Count(n, "condition") + ", see 'gpushare status'"
	}
	if says == cv.said {
		return
	}
	if err := cv.Notify.Status(says); err != nil {
		cv.Log.Warn("cannot report the state to the service manager", "error", err)
		return
	}
	cv.said = says
}

// Pass observes the node once and corrects it.
func (cv *Converger) Pass(ctx context.Context) {
	cv.Files.Check(ctx)
	if _, changed := cv.observe(ctx); changed {
		cv.Wake() // The node of a module that was just loaded may be missing now.
	}
	correcting, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	// First access to removed instances is revoked: an instance that is created in their place has the same device numbers.
	if err := cv.Correct(correcting); err != nil && ctx.Err() == nil {
		cv.Log.Warn("cannot converge", "error", err)
	}
	if cv.Changes.Restore(cv.Observer.Last()) && cv.State.NoteCompared() { // A change that follows from it is open now.
		cv.Invalidate()
	}
	cv.recordMissing(cv.Observer.Last()) // After Restore: instances that a reset removed are created again by the change that is open now.
	cv.Refresh(ctx, cv.Observer.Last())
	cv.Changes.RestartUnits(ctx)
	cv.Identities.WakeNames()
}

// observe observes the node, makes the device nodes that it lacks, and observes it again if that changed it. Each has its own time: a
// program of the vendor that hangs takes none from the others, nor from the steps that follow, which revoke access.
func (cv *Converger) observe(ctx context.Context) (node *observe.Node, changed bool) {
	once := func() *observe.Node {
		ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
		defer cancel()
		return cv.Observer.Observe(ctx)
	}
	node = once()
	if changed = cv.Policy.EnsureNodes(ctx, node); changed {
		node = once()
	}
	return node, changed
}

// Correct carries out the node steps that are due by the last observation, unless a change is open. A change revokes access
// before it changes GPUs and grants it after; a correction in between would grant it too early.
func (cv *Converger) Correct(ctx context.Context) error {
	return cv.State.Correct(func() error { return cv.convergeOn(ctx, cv.Observer.Last()) }) // A change converges at its end.
}

// Converge observes and corrects once, at the end of a change with these steps.
func (cv *Converger) Converge(ctx context.Context, steps []step.Step) error {
	cv.Drift.forgetWritten(steps)
	cv.Power.Forget(steps)
	node, _ := cv.observe(ctx)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return cv.convergeOn(ctx, node)
}

// convergeOn carries out the node steps that are due, without the disruptive ones: only a change has authority.
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
	targets := want.PowerTargets(node)
	power := cv.Power.Plan(ctx, targets, false)
	found, steps := cv.driftOf(want, node), slices.Concat(
		nodeSteps.Before, planner.PlanMigration(want, in.MigrationDenied), nodeSteps.After, power.Steps,
	)
	steps = planner.WithoutWaiting(steps, node, cv.Now())
	skipped := disruptive(steps)
	err = cv.CarryOut(ctx, steps)
	cv.reportMPSCorrected(want, node, steps)
	cv.reportDrift(want, found, skipped)
	cv.reportPower(targets, power)
	return errors.Join(filterErr, err)
}

// disruptive returns the steps that the loop has no authority for.
func disruptive(steps []step.Step) []step.Step {
	return slices.DeleteFunc(slices.Clone(steps), func(s step.Step) bool { return s.Disruption != step.Running })
}

// CarryOut carries out the steps without disruption, and observes the node.
func (cv *Converger) CarryOut(ctx context.Context, steps []step.Step) error {
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

// Refresh passes a new observation to the lease table, the conditions, the status and the CDI specs: a client that waited for a
// change may start a container next.
func (cv *Converger) Refresh(ctx context.Context, node *observe.Node) {
	cv.MPSFaults.Converge(node) // Before the table: it may hold a tenant back.
	cv.Health.Converge(node)    // Before the table: it may close a GPU, or open one.
	cv.UpdateTable(node)        // The limits follow the terms of the leases, which it revises.
	cv.MemoryLimits.Converge(ctx, node, cv.reportCorrected)
	cv.MPSAccess.Converge(ctx, node, cv.reportCorrected)
	cv.UpdateTable(node)
	cv.updateReserved()
	cv.UpdateShares()
	cv.updateConditions(node)
	cv.Policy.WriteCDI(ctx)
	cv.Invalidate()
}

// UpdateTable passes the observation, and which GPUs are closed, to the lease table.
func (cv *Converger) UpdateTable(node *observe.Node) {
	cv.State.SetMPSClients(cv.Attribution.MPSClients(node))
	cv.State.SetInNoProcess(cv.NoProcess.observe(node))
	cv.State.SetHardMemory(cv.MemoryLimits.HardMemory())
	cv.Table.Update(planner.View(cv.State, node, cv.Now()))
}

// NodesChanged is called when a device node of the host came or went: running leases may open others now.
func (cv *Converger) NodesChanged() {
	cv.Drift.CheckScopesNow()
	cv.Wake()
}

// PlacesChanged is called when places were closed to leases or opened outside of the loop. The lease table knows it when this returns.
func (cv *Converger) PlacesChanged() {
	cv.UpdateTable(cv.Observer.Last())
	cv.Wake()
}

// updateConditions derives the conditions from an observation.
func (cv *Converger) updateConditions(node *observe.Node) {
	want := cv.State.Desired()
	driver := map[string]api.Condition{}
	parked := errors.Is(node.DriverErr, gpu.ErrParked) // Another condition reports the maintenance.
	if node.DriverErr != nil && !parked {
		e := report.DriverError(node.DriverErr)
		driver[""] = api.Condition{Message: e.Message, Hint: e.Hint}
	}
	cv.Conditions.Replace("driver", driver)
	held, drift := map[string]api.Condition{}, map[string]api.Condition{}
	foreign, gpus := map[string]api.Condition{}, map[string]api.Condition{}
	awaiting := cv.State.AwaitingBoot(want, node)
	for id, why := range cv.State.Held() {
		if awaiting[id] {
			held[string(id)] = api.Condition{GPU: string(id), Message: "held: " + why, Hint: planner.BootHint}
			continue
		}
		name := string(id)
		if g, ok := node.GPU(id); ok {
			name = g.Identity.Argument()
		}
		held[string(id)] = api.Condition{
			GPU:     string(id),
			Message: "held: " + why,
			Hint:    "correct the cause, then 'gpushare gpu retry " + name + "'",
		}
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
			gpus[string(id)] = unansweredCondition(g)
		}
		if !want.Manages(id) || !want.Enforcing() || busy[id] || g.Err != nil {
			continue // Of a GPU that does not answer only the former state is known.
		}
		for j := range g.Instances {
			if in := &g.Instances[j]; !cv.State.ManagesInstance(id, in) {
				foreign[fmt.Sprint(id, in.Placement)] = foreignCondition(g, in, want.Mode(id))
			}
		}
		if len(due[id]) > 0 && held[string(id)].Message == "" {
			drift[string(id)] = api.Condition{
				GPU:     string(id),
				Message: fmt.Sprintf("%s is not as the spec says: an apply would %s", g.Identity.Name(), strings.Join(due[id], ", ")),
				Hint:    fmt.Sprintf("it was changed outside gpushare; 'gpushare gpu retry %s' corrects it", g.Identity.Argument()),
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
	cv.Conditions.Replace("profile-names", planner.UnknownProfiles(want, node))
	cv.updateInventory(want, node)
	cv.updateIsolationConditions(want, node)
	cv.updateUnmanageConditions(want, node)
	cv.updatePowerConditions(want)
	cv.updateNoProcess(node)
}

// unansweredCondition reports a GPU that could not be read.
func unansweredCondition(g *observe.GPU) api.Condition {
	name := g.Identity.Argument()
	hint := "'gpushare gpu retry " + name + "' retries it; other GPUs are not affected"
	if errors.Is(g.Err, gpu.ErrLost) { // A retry alone finds it lost again.
		hint = "reset it: " + gpu.ResetCommands(
			name,
		) + "; if the reset is refused, or the GPU is lost again, 'systemctl reboot' and then 'gpushare maintenance off'"
	}
	return api.Condition{GPU: string(g.Identity.UUID), Message: fmt.Sprintf("GPU %s: %v", name, g.Err), Hint: hint}
}

// foreignCondition reports an instance that gpushare does not manage, with the commands that settle whose it is.
func foreignCondition(g *observe.GPU, in *gpu.Instance, mode string) api.Condition {
	at := fmt.Sprintf("%s %d", g.Identity.Argument(), in.Placement.Start)
	c := api.Condition{
		GPU: string(g.Identity.UUID),
		Message: fmt.Sprintf(
			"%s: %s at %d is not managed by gpushare", g.Identity.Name(), g.Profiles.GIName(in.ProfileID), in.Placement.Start,
		),
		Hint: fmt.Sprintf("it takes no lease; 'gpushare mig import %s' imports it, 'gpushare mig remove %s' removes it", at, at),
	}
	if len(in.Compute) == 0 {
		c.Message += ", and has no compute instance"
	}
	if mode != api.ModeMIG {
		c.Hint = fmt.Sprintf("it takes no lease; 'gpushare mig remove %s' removes it", at)
	}
	return c
}

// driverEvents is what the driver's events say.
var driverEvents = map[gpu.EventKind]string{
	gpu.EventMIGConfig: "its MIG mode or its instances changed",
	gpu.EventECC:       "it has memory errors: 'gpushare gpu show' counts them",
	gpu.EventLost:      "the driver lost it",
}

// takeDriverEvent publishes an event of the driver, and observes the node again. Of a GPU that a change is changing the driver
// reports each instance, which the change does itself.
func (cv *Converger) takeDriverEvent(e gpu.Event) {
	ch := cv.State.Changing()
	switch {
	case e.Kind == gpu.EventWatching:
		cv.watching.begun()
	case e.Kind == gpu.EventXID:
		cv.SuspectMPS(e.GPU, e.XID) // A fatal fault of a client is an XID.
		cv.Health.XID(e)
	case e.Kind == gpu.EventMIGConfig && ch != nil && ch.GPUs[e.GPU]:
	case driverEvents[e.Kind] != "":
		cv.Events.Publish(api.Event{Kind: "gpu." + string(e.Kind), GPU: string(e.GPU), Message: driverEvents[e.Kind]})
	}
	cv.Wake()
}

// eventLoop follows the events of the driver until ctx ends. When they end it subscribes again after an interval.
func (cv *Converger) eventLoop(ctx context.Context) {
	for ctx.Err() == nil {
		err := cv.Driver.Events(ctx, cv.takeDriverEvent)
		cv.watching.begun() // Without events nothing is waited for.
		if ctx.Err() != nil {
			return
		}
		cv.Log.Debug("the driver's events ended", "error", err)
		cv.Wake() // The driver may have been reloaded: its GPUs have no instances then.
		loop.Pause(ctx, cv.ConvergeInterval())
	}
}
