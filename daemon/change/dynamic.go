package change

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// dynamicInterval is the time between two passes when no idle instance is due earlier.
const dynamicInterval = time.Minute

// Dynamic is the state of instances that are created on demand.
type Dynamic struct {
	Signal loop.Wake // a request needs one, or a lease or a change ended

	mu   locks.Mutex[locks.Leaf] // guards what follows
	idle map[idleKey]time.Time

	// planning is held while such a change is planned: a caller that wants to change the node waits for this short time and
	// is not refused.
	planning locks.Mutex[locks.Planning]
}

// idleKey identifies one instance. An instance that was created again has another generation.
type idleKey struct {
	gpu        gpu.UUID
	placement  gpu.Placement
	generation uint64
}

// Wake requests a pass soon. It may be called with any lock held.
func (x *Dynamic) Wake() {
	x.Signal.Set()
}

// since returns the time since which no lease or request needs an instance.
func (x *Dynamic) since(k idleKey) (time.Time, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at, ok := x.idle[k]
	return at, ok
}

// note records the idle instances. Those that were idle before keep their time.
func (x *Dynamic) note(unneeded []idleKey, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	next := map[idleKey]time.Time{}
	for _, k := range unneeded {
		next[k] = now
		if at, ok := x.idle[k]; ok {
			next[k] = at
		}
	}
	x.idle = next
}

// due returns the instances that were idle for their keep time, and the time until the next one is due.
func (x *Dynamic) due(keep func(gpu.UUID) time.Duration, now time.Time) (remove map[gpu.UUID][]gpu.Placement, next time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	remove, next = map[gpu.UUID][]gpu.Placement{}, dynamicInterval
	for k, since := range x.idle {
		if left := keep(k.gpu) - now.Sub(since); left > 0 {
			next = min(next, left)
		} else {
			remove[k.gpu] = append(remove[k.gpu], k.placement)
		}
	}
	return remove, next
}

// postpone starts the keep time of instances that could not be removed again, so that the removal is not retried at once.
func (x *Dynamic) postpone(list map[gpu.UUID][]gpu.Placement, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k := range x.idle {
		if slices.Contains(list[k.gpu], k.placement) {
			x.idle[k] = now
		}
	}
}

// Run creates the instances that requests wait for and removes idle ones, until ctx ends. Changes that are open then end with
// the task group.
func (cs *Changes) Run(ctx context.Context) {
	for next := dynamicInterval; ; next = cs.serveDynamic(ctx) {
		if _, ok := cs.Dynamic.Signal.Sleep(ctx, next); !ok {
			return
		}
	}
}

// serveDynamic starts one change that creates requested instances and removes due ones. When another change is open it does
// nothing: the end of that change wakes the loop. It returns the time until the next instance is due.
func (cs *Changes) serveDynamic(ctx context.Context) time.Duration {
	if want := cs.State.Desired(); !want.Enforcing() || !want.AnyDynamic() {
		return dynamicInterval
	}
	remove, next := cs.dueInstances()
	if len(remove) == 0 && !cs.Table.HasPendingInstances() {
		return next
	}
	cs.Dynamic.planning.Lock()
	defer cs.Dynamic.planning.Unlock()
	if !cs.applyMu.TryLock() {
		return min(next, time.Second) // Another caller plans a change. If that is refused, nothing wakes this loop.
	}
	defer cs.applyMu.Unlock()
	if cs.State.Changing() != nil || cs.Tasks.Stopping() {
		return next
	}
	cs.beginDynamic(ctx, cs.Table.TakePendingInstances(), remove)
	return next
}

// dueInstances records the idle instances, and returns those that are due to be removed.
func (cs *Changes) dueInstances() (remove map[gpu.UUID][]gpu.Placement, next time.Duration) {
	want, node, st := cs.State.Desired(), cs.Observer.Last(), cs.State.Stored()
	var unneeded []idleKey
	for id, places := range cs.Table.UnusedInstances() {
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
	now := cs.Now()
	cs.Dynamic.note(unneeded, now)
	return cs.Dynamic.due(want.Keep, now)
}

// beginDynamic plans, records and starts one change. applyMu is held.
func (cs *Changes) beginDynamic(ctx context.Context, pending []lease.PendingInstance, remove map[gpu.UUID][]gpu.Placement) {
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
	cs.State.SetChanging(provisional)
	cs.Table.Update(planner.View(cs.State, cs.Observer.Last(), cs.Now()))
	observeCtx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	record, plan, failed, err := cs.planDynamic(observeCtx, gpus, create, remove)
	if err == nil && len(record.Steps) > 0 {
		err = cs.State.Store.Update(func(s *store.State) error {
			s.Epoch = record.Epoch
			s.ActiveRestrictions = true
			return recordChange(s, &record)
		})
	}
	if err != nil || len(record.Steps) == 0 {
		if err != nil {
			cs.Log.Error("cannot create MIG instances on demand", "error", err)
			failed = gpus
		}
		cs.Dynamic.postpone(remove, cs.Now())
		cs.State.EndChange()
		cs.Converger.Refresh(ctx, cs.Observer.Last())
		cs.Table.FinishPendingInstances(pending, failed)
		close(provisional.Ended)
		return
	}
	op := cs.Operations.Begin(record.ID, record.Kind, record.By, plan)
	cs.State.SetChanging(
		&state.OpenChange{Operation: op.ID, GPUs: gpus, Brief: true, Ended: provisional.Ended, Pending: pending, Failed: failed},
	)
	cs.Invalidate()
	cs.Tasks.Go(func() {
		run, cancel := context.WithTimeout(cs.Tasks.Context(), changeTimeout)
		defer cancel()
		cs.carryOut(run, record, op.ID, false)
	})
}

// planDynamic plans the created and removed instances from a new observation. failed are the GPUs without a plan.
func (cs *Changes) planDynamic(
	ctx context.Context, gpus map[gpu.UUID]bool, create map[gpu.UUID][]lease.InstanceSlot, remove map[gpu.UUID][]gpu.Placement,
) (r engine.Record, p api.Plan, failed map[gpu.UUID]bool, err error) {
	want, node := cs.State.Desired(), cs.Observer.Observe(ctx)
	if node.DriverErr != nil {
		return r, p, nil, node.DriverErr
	}
	free, use := cs.Table.UnusedInstances(), cs.Attribution.UsageUnder(want, cs.Attribution.OpenDevices(ctx, node.GPUs))
	failed = map[gpu.UUID]bool{}
	var hardware []step.Step
	for _, id := range slices.Sorted(maps.Keys(gpus)) {
		g, ok := node.GPU(id)
		if !ok || !want.Dynamic(id) {
			failed[id] = true
			continue
		}
		idle := slices.DeleteFunc(slices.Clone(remove[id]), func(at gpu.Placement) bool { return !slices.Contains(free[id], at) })
		steps, err := planner.PlanOnDemand(want.GPUs[id], g, use, create[id], idle)
		if err != nil {
			failed[id] = true
			cs.Dynamic.postpone(map[gpu.UUID][]gpu.Placement{id: remove[id]}, cs.Now())
			cs.Log.Warn("cannot create MIG instances on demand", "gpu", id, "error", err)
			continue
		}
		hardware = append(hardware, steps...)
	}
	if len(hardware) == 0 {
		return r, p, failed, nil
	}
	steps, err := cs.withNodeSteps(ctx, want, node, use, hardware)
	if err != nil {
		return r, p, nil, err
	}
	r = engine.Record{
		Kind:       state.KindDynamic,
		By:         "gpushared",
		Generation: want.Generation,
		Started:    cs.Now(),
		Epoch:      state.Epoch(node),
		Steps:      steps,
	}
	p = api.Plan{SchemaVersion: 1, Generation: want.Generation, Steps: state.WireSteps(r.Steps)}
	cs.State.Estimate(node, &p)
	return r, p, failed, nil
}

// withNodeSteps adds the node steps to steps that create and destroy instances: quiesced units, and isolation.
func (cs *Changes) withNodeSteps(
	ctx context.Context, want *state.Desired, node *observe.Node, use planner.Usage, hardware []step.Step,
) ([]step.Step, error) {
	nodeSteps, err := planner.PlanNodeSteps(want, node, cs.Policy.NodeInput(want, node, hardware))
	if err != nil {
		return nil, err
	}
	quiesce, err := cs.Quiesce(ctx, want, use, hardware)
	if err != nil {
		return nil, err
	}
	return planner.Number(
		planner.WithoutDisruption(slices.Concat(quiesce.Stop, nodeSteps.Before, hardware, nodeSteps.After, quiesce.Start)),
	), nil
}

// IdleSince returns the time since which no lease or request needs an instance.
func (cs *Changes) IdleSince(id gpu.UUID, at gpu.Placement, generation uint64) (time.Time, bool) {
	return cs.Dynamic.since(idleKey{id, at, generation})
}
