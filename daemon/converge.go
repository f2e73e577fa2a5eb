package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// kickSpacing is the least time between two looks that somebody asked for.
const kickSpacing = 200 * time.Millisecond

// aliveEvery is how often the converge loop tells the watchdog that it advances. A step may take a minute: the unit's
// WatchdogSec is longer than that.
const aliveEvery = 20 * time.Second

// convergeLoop looks at the node on a timer and when somebody asks, and mends what needs no authority.
func (d *Converger) convergeLoop(ctx context.Context) {
	timer := time.NewTimer(d.convergeInterval())
	defer timer.Stop()
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-alive.C:
			_ = d.notify.Watchdog() // Nobody watches, or it is told.
			continue
		case <-timer.C:
		case <-d.kicks.C():
		}
		timer.Reset(d.convergeInterval())
		d.turn(ctx)
		loop.Pause(ctx, kickSpacing) // So that many kicks make few looks.
	}
}

// turn is one look of the loop, with all that follows from it.
func (d *Converger) turn(ctx context.Context) {
	look, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	d.observer.Observe(look)
	// First what is gone is taken from whoever may open it: what is made anew in its place has the same numbers.
	if err := d.mend(look); err != nil && ctx.Err() == nil {
		d.Log.Warn("cannot converge", "error", err)
	}
	d.changes.restore(d.observer.Last())
	d.noteGone(d.observer.Last()) // After it: what a reset took comes back by a change, which is under way now.
	d.refresh(ctx, d.observer.Last())
	d.changes.restartUnits(ctx)
	d.identities.kickNames()
}

// mend carries out the soft steps that are due by the last observation, unless a change is under way: a change takes
// access away before it touches the hardware and gives it after, and what is mended in between would give it too early.
func (d *Converger) mend(ctx context.Context) error {
	return d.state.Mend(func() error { return d.convergeOn(ctx, d.observer.Last()) }) // A change converges at its end.
}

// converge looks and mends once, as the end of a change.
func (d *Converger) converge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout+30*time.Second)
	defer cancel()
	return d.convergeOn(ctx, d.observer.Observe(ctx))
}

// convergeOn carries out the soft steps that are due. It never takes a disruptive one: only a change carries authority.
func (d *Converger) convergeOn(ctx context.Context, node *observe.Node) error {
	d.Counters.converges.Add(1)
	want := d.state.Desired()
	if !want.enforcing() {
		return nil
	}
	d.attribution.noteRates(node)
	unguarded := d.mendGuards(ctx, want, node)
	d.mendScopes(ctx, node)
	in := d.policy.nodeInput(want, node, nil)
	soft, err := planSoft(want, node, in)
	if err != nil {
		return errors.Join(unguarded, err)
	}
	found, steps := d.driftOf(want, node), slices.Concat(soft.narrow, planMigration(want, in.Denied), soft.rest)
	undone := disturbing(steps)
	err = d.mendBy(ctx, steps)
	d.tellDrift(want, found, undone)
	return errors.Join(unguarded, err)
}

// disturbing is the steps that the loop has no authority for.
func disturbing(steps []step.Step) []step.Step {
	return slices.DeleteFunc(slices.Clone(steps), func(s step.Step) bool { return s.Disruption != step.Running })
}

// mendBy carries out what of the steps disturbs nobody.
func (d *Converger) mendBy(ctx context.Context, steps []step.Step) error {
	steps = number(slices.DeleteFunc(steps, func(s step.Step) bool { return s.Disruption == step.Running }))
	if len(steps) == 0 {
		return nil
	}
	out := d.engine.Converge(ctx, steps, engine.Hooks{Progress: func(p engine.Progress) {
		if p.State == engine.Done && !p.Skipped {
			d.Counters.steps.Add(1)
		}
	}})
	d.observer.Observe(ctx)
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

// planRestore plans what a boot took away: the recorded layouts at their placements, and for GPUs that never reached
// what was accepted, one try without any authority.
func (d *Changes) planRestore(ctx context.Context, want *desired, node *observe.Node, lost map[gpu.UUID]bool) ([]step.Step, map[gpu.UUID]error) {
	var steps []step.Step
	problems := map[gpu.UUID]error{}
	st, use := d.state.Kept(), d.attribution.usageUnder(want, d.attribution.devicesOpen(ctx, node.GPUs))
	for _, id := range slices.Sorted(maps.Keys(lost)) {
		g, ok := node.GPU(id)
		if !ok || g.Err != nil {
			continue // It is tried again when it answers.
		}
		a, known := st.Achieved[id]
		a.Layout = comesBack(want, id, &a)
		var more []step.Step
		var err error
		if known && a.Generation == want.generation && want.mode(id) == api.ModeMIG && a.MIG && g.Profiles != nil {
			more, err = restoreGPU(want.gpus[id], g, a.Layout, use)
		} else {
			more, err = planGPU(want.gpus[id], g, use, authority{})
		}
		if err != nil {
			problems[id] = err
			continue
		}
		steps = append(steps, more...)
	}
	quiet, err := d.planQuiesce(ctx, want, use, steps)
	if err != nil {
		d.Log.Warn("units are not stopped for the restoring of layouts", "error", err)
	}
	return slices.Concat(quiet.stop, steps, quiet.start), problems
}

// restoreGPU plans a recorded layout, at the recorded placements.
func restoreGPU(e *api.GPUSpec, g *observe.GPU, layout []gpu.Instance, use usage) ([]step.Step, error) {
	names, _ := holders(g, nil, use)
	mode, err := mig.PlanMode(g.MIG, true, names, mig.Options{})
	if err != nil {
		return nil, err
	}
	r, err := mig.Restore(*g.Profiles, present(e, g, use), mig.Record(*g.Profiles, layout), mig.Options{})
	if err != nil {
		return nil, err
	}
	r.Mode = mode
	return r.Steps(g.Identity.UUID), nil
}

// refresh makes a new observation known to those who decide and show, and to container runtimes: whoever waited for a
// change starts a container next.
func (d *Converger) refresh(ctx context.Context, node *observe.Node) {
	d.table.Update(view(d.state, node))
	d.judge(node)
	d.policy.writeCDI(ctx)
	d.touch()
}

// judge turns what was observed into conditions.
func (d *Converger) judge(node *observe.Node) {
	want := d.state.Desired()
	driver := map[string]api.Condition{}
	if node.DriverErr != nil {
		e := driverError(node.DriverErr)
		driver[""] = api.Condition{Message: e.Message, Hint: e.Hint}
	}
	d.Conditions.replace("driver", driver)
	held, drift, foreign, gpus := map[string]api.Condition{}, map[string]api.Condition{}, map[string]api.Condition{}, map[string]api.Condition{}
	for id, why := range d.state.held() {
		name := string(id)
		if g, ok := node.GPU(id); ok {
			name = fmt.Sprint(g.Identity.Index)
		}
		held[string(id)] = api.Condition{GPU: string(id), Message: "held: " + why, Hint: "correct the cause, then 'gpushare gpu retry " + name + "'"}
	}
	busy := map[gpu.UUID]bool{}
	if ch := d.state.Changing(); ch != nil {
		busy = ch.gpus
	}
	use := d.attribution.usage()
	use.anyone = true
	hardware := planGPUs(want, node, use, authority{Force: true, AllowReset: true})
	due := map[gpu.UUID][]string{}
	for i := range hardware.steps {
		due[gpu.UUID(hardware.steps[i].GPU)] = append(due[gpu.UUID(hardware.steps[i].GPU)], hardware.steps[i].Text)
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
		if !want.manages(id) || busy[id] || held[string(id)].Message != "" || g.Err != nil {
			continue // Of one that does not answer, only what it was before is known.
		}
		if len(due[id]) > 0 && want.enforcing() {
			drift[string(id)] = api.Condition{GPU: string(id), Message: fmt.Sprintf("GPU %d is not as the spec says: an apply would %s", g.Identity.Index, strings.Join(due[id], ", ")), Hint: "somebody changed it outside gpushare; 'gpushare apply' puts it right"}
		}
		for j := range g.Instances {
			if in := &g.Instances[j]; want.enforcing() && !d.state.ours(id, in) {
				foreign[fmt.Sprint(id, in.Placement)] = api.Condition{GPU: string(id), Message: fmt.Sprintf("GPU %d: %s at %d was not made by gpushare", g.Identity.Index, profileName(g.Profiles, in.ProfileID), in.Placement.Start), Hint: fmt.Sprintf("it is left alone, and nobody gets a lease on it; 'gpushare mig adopt %d %d' makes it gpushare's, 'gpushare mig remove %d %d' takes it away", g.Identity.Index, in.Placement.Start, g.Identity.Index, in.Placement.Start)}
			}
		}
	}
	if want.enforcing() {
		maps.Copy(drift, d.drift.leftNow())
	}
	d.Conditions.replace("held", held)
	d.Conditions.replace("drift", drift)
	d.judgeSlices(want, node, foreign)
	d.Conditions.replace("foreign", foreign)
	d.Conditions.replace("gpu", gpus)
	d.judgeSoft(want, node)
	d.judgeRelease(want, node)
}

// postReload reads the settings that can change while the daemon runs, and converges once before it answers.
func (d *Daemon) postReload(c *call) error {
	waiting, err := d.reload()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx(), observe.Timeout+30*time.Second)
	defer cancel()
	d.observer.Observe(ctx)
	d.converger.drift.scopesNow()
	if err := d.converger.mend(ctx); err != nil {
		return &api.Error{Kind: api.KindDegraded, Message: "the settings are in force, but not all could be mended: " + err.Error(), Hint: "see 'gpushare status'"}
	}
	d.converger.refresh(ctx, d.observer.Last())
	d.kick() // What a reset or a reload of the driver took away is made again by a change of its own.
	return c.reply(http.StatusOK, map[string]any{"reloaded": true, "needs_restart": waiting})
}

// eventLoop follows the driver's events. It ends with ctx; a driver that has none is asked again now and then.
func (d *Converger) eventLoop(ctx context.Context) {
	for ctx.Err() == nil {
		err := d.driver.Events(ctx, func(e gpu.Event) {
			switch e.Kind {
			case gpu.EventXID:
				d.Events.publish(api.Event{Kind: "gpu.xid", GPU: string(e.GPU), Message: fmt.Sprintf("XID %d", e.XID)})
			case gpu.EventMIGConfig, gpu.EventECC, gpu.EventLost:
				d.Events.publish(api.Event{Kind: "gpu." + string(e.Kind), GPU: string(e.GPU), Message: string(e.Kind)})
			}
			d.kick()
		})
		if ctx.Err() != nil {
			return
		}
		d.Log.Debug("the driver's events ended", "error", err)
		d.kick() // The driver may have gone and come back, with nothing on its GPUs.
		select {
		case <-ctx.Done():
		case <-time.After(d.convergeInterval()):
		}
	}
}
