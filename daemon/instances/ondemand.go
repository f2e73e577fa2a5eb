package instances

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// interval is the time between two passes when no idle instance is due earlier.
const interval = time.Minute

// Run creates the instances that requests wait for and removes idle ones, until ctx ends. Changes that are open then end with
// the task group.
func (in *Instances) Run(ctx context.Context) {
	for next := interval; ; next = in.serve(ctx) {
		if _, ok := in.Due.Sleep(ctx, next); !ok {
			return
		}
	}
}

// serve starts one change that creates requested instances and removes due ones. When another change is open it does
// nothing: the end of that change wakes the loop. It returns the time until the next instance is due.
func (in *Instances) serve(ctx context.Context) time.Duration {
	if want := in.State.Desired(); !want.Enforcing() || !want.AnyDynamic() {
		return interval
	}
	remove, next := in.dueInstances()
	if len(remove) == 0 && !in.Table.HasPendingInstances() {
		return next
	}
	begun := in.Changes.Briefly(func() {
		if in.State.Changing() == nil && !in.Tasks.Stopping() {
			in.begin(ctx, in.Table.TakePendingInstances(), remove)
		}
	})
	if !begun {
		return min(next, time.Second) // Another caller plans a change. If that is refused, nothing wakes this loop.
	}
	return next
}

// dueInstances records the idle instances, and returns those that are due to be removed.
func (in *Instances) dueInstances() (remove map[gpu.UUID][]gpu.Placement, next time.Duration) {
	want, node, st := in.State.Desired(), in.Observer.Last(), in.State.Stored()
	var unneeded []idleKey
	for id, places := range in.Table.UnusedInstances() {
		g, ok := node.GPU(id)
		if !ok || g.Err != nil || closing.Held.Closes(st, id) || !want.Dynamic(id) {
			continue
		}
		a := st.Achieved[id]
		for _, at := range places {
			if m := state.InstanceRecordOf(&a, at); m != nil && !m.Imported {
				unneeded = append(unneeded, idleKey{id, at, m.Generation})
			}
		}
	}
	now := in.Now()
	in.idle.note(unneeded, now)
	return in.idle.due(want.Keep, now)
}

// begin plans, records and starts one change. No other one is planned or open.
func (in *Instances) begin(ctx context.Context, pending []lease.PendingInstance, remove map[gpu.UUID][]gpu.Placement) {
	create := map[gpu.UUID][]lease.InstanceSlot{}
	for _, m := range pending {
		create[m.GPU] = append(create[m.GPU], m.InstanceSlot)
	}
	gpus := map[gpu.UUID]bool{}
	for id := range create {
		gpus[id] = true
	}
	for id := range remove {
		gpus[id] = true
	}
	if len(gpus) == 0 {
		return
	}
	// The GPUs are closed to new leases before their current use is read.
	provisional := &state.OpenChange{Operation: state.KindDynamic, GPUs: gpus, Brief: true, Ended: make(chan struct{})}
	in.State.SetChanging(provisional)
	in.Table.Update(planner.View(in.State, in.Observer.Last(), in.Now()))
	observeCtx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	record, plan, failed, err := in.plan(observeCtx, gpus, create, remove)
	if err == nil && len(record.Steps) > 0 {
		open := &state.OpenChange{GPUs: gpus, Brief: true, Ended: provisional.Ended, Pending: pending, Failed: failed}
		_, err = in.Changes.Begin(&record, plan, open, func(s *store.State) {
			s.Epoch = record.Epoch
			s.ActiveRestrictions = true
		})
	}
	if err != nil || len(record.Steps) == 0 {
		if err != nil {
			in.Log.Error("cannot create MIG instances on demand", "error", err)
			failed = gpus
		}
		in.idle.postpone(remove, in.Now())
		in.State.EndChange()
		in.Refresh(ctx, in.Observer.Last())
		in.Table.FinishPendingInstances(pending, failed)
		close(provisional.Ended)
	}
}

// plan plans the created and removed instances from a new observation. failed are the GPUs without a plan.
func (in *Instances) plan(
	ctx context.Context, gpus map[gpu.UUID]bool, create map[gpu.UUID][]lease.InstanceSlot, remove map[gpu.UUID][]gpu.Placement,
) (r engine.Record, p api.Plan, failed map[gpu.UUID]bool, err error) {
	want, node := in.State.Desired(), in.Observer.Observe(ctx)
	if node.DriverErr != nil {
		return r, p, nil, node.DriverErr
	}
	free, use := in.Table.UnusedInstances(), in.Attribution.UsageUnder(want, in.Attribution.OpenDevices(ctx, node.GPUs))
	failed = map[gpu.UUID]bool{}
	var hardware []step.Step
	for _, id := range slices.Sorted(maps.Keys(gpus)) {
		g, ok := node.GPU(id)
		if !ok || !want.Dynamic(id) {
			failed[id] = true
			continue
		}
		idle := slices.DeleteFunc(slices.Clone(remove[id]), func(at gpu.Placement) bool { return !slices.Contains(free[id], at) })
		steps, err := onDemand(want.GPUs[id], g, use, create[id], idle)
		if err != nil {
			failed[id] = true
			in.idle.postpone(map[gpu.UUID][]gpu.Placement{id: remove[id]}, in.Now())
			in.Log.Warn("cannot create MIG instances on demand", "gpu", id, "error", err)
			continue
		}
		hardware = append(hardware, steps...)
	}
	if len(hardware) == 0 {
		return r, p, failed, nil
	}
	steps, err := in.withNodeSteps(ctx, want, node, use, hardware)
	if err != nil {
		return r, p, nil, err
	}
	r = engine.Record{
		Kind:       state.KindDynamic,
		By:         "gpushared",
		Generation: want.Generation,
		Started:    in.Now(),
		Epoch:      state.Epoch(node),
		Steps:      steps,
	}
	p = api.Plan{SchemaVersion: 1, Generation: want.Generation, Steps: state.WireSteps(r.Steps)}
	in.State.Estimate(node, &p)
	return r, p, failed, nil
}

// onDemand plans one GPU. It fails where all the requested instances are there: their requests cannot have them, and would ask for them
// again at once.
func onDemand(
	e *api.GPUSpec, g *observe.GPU, use planner.Usage, create []lease.InstanceSlot, remove []gpu.Placement,
) ([]step.Step, error) {
	steps, err := planner.PlanOnDemand(e, g, use, create, remove)
	if err == nil && len(steps) == 0 && len(create) > 0 {
		at := create[0]
		return nil, fmt.Errorf("cannot create %s at %d on %s: it is there already", at.Name, at.Placement.Start, g.Identity.Name())
	}
	return steps, err
}

// withNodeSteps adds the node steps to steps that create and destroy instances: quiesced units, and isolation.
func (in *Instances) withNodeSteps(
	ctx context.Context, want *state.Desired, node *observe.Node, use planner.Usage, hardware []step.Step,
) ([]step.Step, error) {
	nodeSteps, err := planner.PlanNodeSteps(want, node, in.Policy.NodeInput(want, node, hardware))
	if err != nil {
		return nil, err
	}
	quiesce, err := in.Changes.Quiesce(ctx, want, use, hardware)
	if err != nil {
		return nil, err
	}
	return planner.Number(
		planner.WithoutDisruption(slices.Concat(quiesce.Stop, nodeSteps.Before, hardware, nodeSteps.After, quiesce.Start)),
	), nil
}

// IdleSince returns the time since which no lease or request needs an instance.
func (in *Instances) IdleSince(id gpu.UUID, at gpu.Placement, generation uint64) (time.Time, bool) {
	return in.idle.since(idleKey{id, at, generation})
}
