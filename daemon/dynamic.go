package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// kindDynamic is the kind of change that makes instances for requests, and takes away those that nobody needs.
const kindDynamic = "dynamic"

// dynamicLook is how often it is looked for instances that nobody needs when nothing is known to be due.
const dynamicLook = time.Minute

// dynamic is what is known of instances that are made on demand.
type dynamic struct {
	wake loop.Wake // a request wants one, a lease ended, or a change did

	mu   sync.Mutex // guards what follows
	idle map[idleKey]time.Time

	// planning is held while a change of this kind is put together: whoever wants to change the node waits for that
	// moment instead of being refused.
	planning sync.Mutex
}

// idleKey is one instance while it is the same one.
type idleKey struct {
	gpu        gpu.UUID
	placement  gpu.Placement
	generation uint64
}

// poke asks for a look soon. It may be called with any lock held.
func (x *dynamic) poke() {
	x.wake.Set()
}

// since tells since when an instance is needed by nobody.
func (x *dynamic) since(k idleKey) (time.Time, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at, ok := x.idle[k]
	return at, ok
}

// note takes down which instances nobody needs now. Those that nobody needed before keep their time.
func (x *dynamic) note(unneeded []idleKey, now time.Time) {
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

// due gives the instances that nobody needed for as long as they are kept, and how long it is until the next is one.
func (x *dynamic) due(keep func(gpu.UUID) time.Duration, now time.Time) (gone map[gpu.UUID][]gpu.Placement, next time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	gone, next = map[gpu.UUID][]gpu.Placement{}, dynamicLook
	for k, since := range x.idle {
		if left := keep(k.gpu) - now.Sub(since); left > 0 {
			next = min(next, left)
		} else {
			gone[k.gpu] = append(gone[k.gpu], k.placement)
		}
	}
	return gone, next
}

// postpone keeps instances that could not be taken away for as long again: it is not tried without end.
func (x *dynamic) postpone(list map[gpu.UUID][]gpu.Placement, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k := range x.idle {
		if slices.Contains(list[k.gpu], k.placement) {
			x.idle[k] = now
		}
	}
}

// dynamicLoop makes the instances that requests wait for, and takes away those that nobody needs any more.
func (d *Changes) dynamicLoop(ctx context.Context) {
	timer := time.NewTimer(dynamicLook)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.dynamic.wake.C():
		case <-timer.C:
		}
		timer.Reset(d.serveDynamic(ctx))
	}
}

// serveDynamic begins what is to be made and what is due to go, in one small change, unless another is under way: its end
// asks for the next look. It tells when something is due next.
func (d *Changes) serveDynamic(ctx context.Context) time.Duration {
	if want := d.state.Desired(); !want.enforcing() || !want.anyDynamic() {
		return dynamicLook
	}
	gone, next := d.idleNow()
	if len(gone) == 0 && !d.table.Wants() {
		return next
	}
	d.dynamic.planning.Lock()
	defer d.dynamic.planning.Unlock()
	if !d.applyMu.TryLock() {
		return min(next, time.Second) // Somebody plans a change, which may end without one: then nothing pokes.
	}
	defer d.applyMu.Unlock()
	if d.state.Changing() != nil || d.tasks.Ending() {
		return next
	}
	d.beginDynamic(ctx, d.table.TakeMakings(), gone)
	return next
}

// idleNow notes which instances nobody needs, and gives those that are due to go.
func (d *Changes) idleNow() (gone map[gpu.UUID][]gpu.Placement, next time.Duration) {
	want, node, st := d.state.Desired(), d.observer.Last(), d.state.Kept()
	var unneeded []idleKey
	for id, places := range d.table.Unneeded() {
		g, ok := node.GPU(id)
		if _, held := st.Held[id]; !ok || g.Err != nil || held || !want.dynamic(id) {
			continue
		}
		a := st.Achieved[id]
		for _, at := range places {
			if m := markOf(&a, at); m != nil && !m.Adopted {
				unneeded = append(unneeded, idleKey{id, at, m.Generation})
			}
		}
	}
	now := d.Now()
	d.dynamic.note(unneeded, now)
	return d.dynamic.due(want.keep, now)
}

// beginDynamic plans, records and starts one change. applyMu is held.
func (d *Changes) beginDynamic(ctx context.Context, makings []lease.Making, gone map[gpu.UUID][]gpu.Placement) {
	rooms := map[gpu.UUID][]lease.Room{}
	for _, m := range makings {
		rooms[m.GPU] = append(rooms[m.GPU], m.Room)
	}
	touched := map[gpu.UUID]bool{}
	for id := range rooms {
		touched[id] = true
	}
	for id := range gone {
		touched[id] = true
	}
	if len(touched) == 0 {
		return
	}
	// First nobody is let in any more, and then it is looked at who is inside.
	gate := &openChange{operation: kindDynamic, gpus: touched, brief: true, ended: make(chan struct{})}
	d.state.SetChanging(gate)
	d.table.Update(view(d.state, d.observer.Last()))
	look, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	record, plan, failed, err := d.planDynamic(look, touched, rooms, gone)
	if err == nil && len(record.Steps) > 0 {
		err = d.state.Store.Update(func(s *store.State) error {
			s.Epoch = record.Epoch
			s.Standing = true
			return recordChange(s, &record)
		})
	}
	if err != nil || len(record.Steps) == 0 {
		if err != nil {
			d.Log.Error("cannot make MIG instances on demand", "error", err)
			failed = touched
		}
		d.dynamic.postpone(gone, d.Now())
		d.state.EndChange()
		d.converger.refresh(ctx, d.observer.Last())
		d.table.EndMakings(makings, failed)
		close(gate.ended)
		return
	}
	op := d.Operations.begin(record.ID, record.Kind, record.Who, plan)
	d.state.SetChanging(&openChange{operation: op.ID, gpus: touched, brief: true, ended: gate.ended, makings: makings, failed: failed})
	d.touch()
	d.tasks.Go(func() {
		run, cancel := context.WithTimeout(d.tasks.Context(), changeTimeout)
		defer cancel()
		d.carryOut(run, record, op.ID, false)
	})
}

// planDynamic plans what is made and what goes, from a new look at the node. failed are the GPUs where it cannot be.
func (d *Changes) planDynamic(ctx context.Context, touched map[gpu.UUID]bool, rooms map[gpu.UUID][]lease.Room, gone map[gpu.UUID][]gpu.Placement) (r engine.Record, p api.Plan, failed map[gpu.UUID]bool, err error) {
	want, node := d.state.Desired(), d.observer.Observe(ctx)
	if node.DriverErr != nil {
		return r, p, nil, node.DriverErr
	}
	free, use := d.table.Unneeded(), d.attribution.usageUnder(want, d.attribution.devicesOpen(ctx, node.GPUs))
	failed = map[gpu.UUID]bool{}
	var hardware []step.Step
	for _, id := range slices.Sorted(maps.Keys(touched)) {
		g, ok := node.GPU(id)
		if !ok || !want.dynamic(id) {
			failed[id] = true
			continue
		}
		idle := slices.DeleteFunc(slices.Clone(gone[id]), func(at gpu.Placement) bool { return !slices.Contains(free[id], at) })
		steps, err := planOnDemand(want.gpus[id], g, use, rooms[id], idle)
		if err != nil {
			failed[id] = true
			d.dynamic.postpone(map[gpu.UUID][]gpu.Placement{id: gone[id]}, d.Now())
			d.Log.Warn("cannot make MIG instances on demand", "gpu", id, "error", err)
			continue
		}
		hardware = append(hardware, steps...)
	}
	if len(hardware) == 0 {
		return r, p, failed, nil
	}
	steps, err := d.around(ctx, want, node, use, hardware)
	if err != nil {
		return r, p, nil, err
	}
	r = engine.Record{Kind: kindDynamic, Who: "gpushared", Generation: want.generation, Started: d.Now(), Epoch: epoch(node), Steps: steps}
	p = api.Plan{SchemaVersion: 1, Generation: want.generation, Steps: wireSteps(r.Steps)}
	d.state.estimate(node, &p)
	return r, p, failed, nil
}

// around adds to steps that make and destroy idle instances what comes with them: units that are quiesced, and walls.
func (d *Changes) around(ctx context.Context, want *desired, node *observe.Node, use usage, hardware []step.Step) ([]step.Step, error) {
	soft, err := planNode(want, node, d.policy.nodeInput(want, node, hardware))
	if err != nil {
		return nil, err
	}
	quiet, err := d.planQuiesce(ctx, want, use, hardware)
	if err != nil {
		return nil, err
	}
	return number(disturbless(slices.Concat(quiet.stop, soft.narrow, hardware, soft.rest, quiet.start))), nil
}

// disturbless leaves out what would disturb somebody: nobody gave any authority.
func disturbless(steps []step.Step) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool { return s.Disruption == step.Running })
}

// planOnDemand plans one GPU: instances at exactly these rooms, and these idle ones taken away. Others stay, unless they
// are idle and in the way. It is pure.
func planOnDemand(e *api.GPUSpec, g *observe.GPU, use usage, rooms []lease.Room, gone []gpu.Placement) ([]step.Step, error) {
	switch {
	case g.Err != nil:
		return nil, g.Err
	case g.Profiles == nil || !g.MIG.Current:
		return nil, fmt.Errorf("cannot make an instance on GPU %d: its MIG mode is off", g.Identity.Index)
	}
	there := present(e, g, use)
	for i := range there {
		there[i].Spare = !slices.Contains(gone, there[i].Placement)
		if there[i].InUse && !there[i].Spare {
			there[i].Spare = true // Somebody came.
		}
	}
	wants := make([]mig.Want, len(rooms))
	for i, r := range rooms {
		wants[i] = mig.Want{Name: r.Name, At: &r.Placement}
	}
	r, err := mig.Plan(*g.Profiles, there, wants, mig.Options{})
	if err != nil {
		return nil, err
	}
	steps := r.Steps(g.Identity.UUID)
	for i := range steps {
		switch steps[i].Kind {
		case mig.KindCreate:
			steps[i].Reason = "a request waits for it"
		case mig.KindDestroy:
			steps[i].Reason = "nobody needs it"
			if len(rooms) > 0 {
				steps[i].Reason = "nobody needs it, or a request needs its room"
			}
		}
	}
	return steps, nil
}

// takeTurn lets one caller change the node, until done is called. Making an instance is short, so it waits for that;
// another change is a conflict.
func (d *Changes) takeTurn(ctx context.Context) (done func(), err error) {
	if !d.applyMu.TryLock() {
		// It may be that only the making of an instance is being put together.
		d.dynamic.planning.Lock()
		locked := d.applyMu.TryLock()
		d.dynamic.planning.Unlock()
		if !locked {
			return nil, d.conflict()
		}
	}
	ch := d.state.Changing()
	if ch != nil && ch.brief {
		wait, cancel := context.WithTimeout(ctx, briefWait)
		defer cancel()
		select {
		case <-ch.ended:
		case <-wait.Done():
		}
	}
	if d.state.Changing() != nil {
		d.applyMu.Unlock()
		return nil, d.conflict()
	}
	return func() {
		d.applyMu.Unlock()
		d.dynamic.poke() // Somebody may wait for an instance since.
	}, nil
}

// briefWait is how long a change is waited for that only makes instances.
const briefWait = time.Minute

// comesBack gives what of a GPU's layout comes back after a boot: what was made on demand was for leases that are over.
func comesBack(want *desired, id gpu.UUID, a *store.Achieved) []gpu.Instance {
	if !want.dynamic(id) {
		return a.Layout
	}
	return slices.DeleteFunc(slices.Clone(a.Layout), func(in gpu.Instance) bool {
		m := markOf(a, in.Placement)
		return m == nil || !m.Adopted
	})
}

// keep is how long an instance that nobody needs stays on a GPU.
func (d *desired) keep(id gpu.UUID) time.Duration {
	if e := d.gpus[id]; e != nil && e.MIG != nil && e.MIG.Keep != nil {
		return time.Duration(*e.MIG.Keep)
	}
	return time.Duration(api.DefaultKeep)
}

// anyDynamic tells whether instances are made on demand anywhere.
func (d *desired) anyDynamic() bool {
	for id := range d.gpus {
		if d.dynamic(id) {
			return true
		}
	}
	return false
}

// idleSince tells since when an instance is needed by nobody.
func (d *Changes) idleSince(id gpu.UUID, at gpu.Placement, generation uint64) (time.Time, bool) {
	return d.dynamic.since(idleKey{id, at, generation})
}
