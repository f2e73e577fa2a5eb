package lease

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
)

// Update sets the current state of the node, and places what can be placed.
func (t *Table) Update(v View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	respec := !t.ready || v.Generation != t.view.Generation
	t.countUseLocked() // With the half-life until now.
	t.view, t.ready = v, true
	t.comingEndsLocked()
	if respec {
		t.reviseTermsLocked()
		t.occupancyLocked() // It renews the reservations, which decide what can ever fit.
	}
	for _, k := range t.queue {
		k.updateLocked(respec)
	}
	t.evaluateLocked()
}

// reviseTermsLocked copies what changes live from the grants to the leases' terms: share, latency, cap, priority, preemption, what
// follows from overuse and idleness, and memory if it fits. The rest of the terms stays the same.
func (t *Table) reviseTermsLocked() {
	o := t.liveLocked()
	t.fallLowLatencyLocked(o)
	for _, e := range t.sortedLocked() {
		// What the tenant decides also holds for a lease whose grant was removed or is of another kind now.
		if i := slices.IndexFunc(t.view.Grants, func(g Grant) bool { return g.Tenant == e.Terms.Tenant }); i >= 0 {
			g := &t.view.Grants[i]
			t.version++
			t.reviseOveruseLocked(e, g.Overuse)
			e.Terms.Priority, e.Terms.Preempt, e.Terms.Overuse = g.Priority, g.Preempt, g.Overuse
		}
		i := slices.IndexFunc(t.view.Grants, func(g Grant) bool { return g.Key() == e.Terms.Key() })
		if i < 0 || t.view.Grants[i].Kind() != e.Terms.Kind() {
			continue
		}
		g := &t.view.Grants[i]
		e.Terms.Spec.Idle = g.Spec.Idle
		old, now := e.Terms.share(), g.share()
		if old == nil || now == nil {
			continue
		}
		revised := *now
		switch was, is := api.Bytes(e.Terms.memory()).Short(), api.Bytes(g.memory()).Short(); {
		case g.memory() > e.Terms.memory() && !t.raiseFitsLocked(e, g, o):
			revised.GPUMemory = old.GPUMemory
			t.noticeLocked(
				e, "lease.memory",
				fmt.Sprintf("the grant's memory is %s now, but that does not fit next to the other grants: this lease keeps %s", is, was),
			)
		case g.memory() != e.Terms.memory():
			t.noticeLocked(e, "lease.memory", fmt.Sprintf("the GPU memory of grant %s is %s now, it was %s", e.Terms.Spec.Name, is, was))
		}
		revised.Share, e.Terms.Spec.Latency = t.reviseLowLatencyLocked(e, g, o)
		if revised.Share != old.Share {
			t.noticeLocked(
				e, "lease.share",
				fmt.Sprintf("the share of grant %s is %s now, it was %s", e.Terms.Spec.Name, revised.Share, old.Share),
			)
		}
		if e.Terms.Kind() == api.ModeMPS {
			e.Terms.Spec.MPS = &revised
		} else {
			e.Terms.Spec.Timeslice = &revised
		}
		// The check of the next lease must include what this one has now.
		for _, id := range e.Place.GPUs {
			if p := o.shared(&e.Place, id).shares[e.Terms.Key()]; p != nil {
				p.memory, p.lowLatency = max(p.memory, e.Terms.memory()), max(p.lowLatency, e.Terms.lowLatency())
			}
		}
	}
}

// reviseOveruseLocked notices a lease when its GPU memory is enforced in another way from now on: a spec says so, or a version of
// the program has another default.
func (t *Table) reviseOveruseLocked(e *entry, now *api.OveruseSpec) {
	was := e.Terms.Overuse
	if was == nil || now == nil || was.GPUMemory == now.GPUMemory || e.Terms.memory() == 0 {
		return
	}
	does := "it is only reported"
	if overuseActs(now) {
		e.Terms.Tightened = e.Terms.Tightened || !overuseActs(was)
		does = "it is frozen"
		if now.GPUMemory == "kill" {
			does = "it is stopped"
		}
		if now.Grace != nil {
			does += " after " + now.Grace.String()
		}
	}
	t.noticeLocked(
		e, "lease.memory", fmt.Sprintf(
			"overuse.gpu_memory of tenant %s is %s now, it was %s: above the %s of grant %s %s",
			e.Terms.Tenant, now.GPUMemory, was.GPUMemory, api.Bytes(e.Terms.memory()).Short(), e.Terms.Spec.Name, does,
		),
	)
}

// overuseActs reports whether a lease above its GPU memory is frozen or stopped.
func overuseActs(o *api.OveruseSpec) bool { return o.GPUMemory == "freeze" || o.GPUMemory == "kill" }

// raiseFitsLocked reports whether the lease's GPU has the capacity for its grant's larger memory.
func (t *Table) raiseFitsLocked(e *entry, g *Grant, o *occupancy) bool {
	for _, id := range e.Place.GPUs {
		d := t.view.gpu(id)
		if d == nil {
			return false
		}
		if memory, _ := o.shared(&e.Place, id).granted(g.Key(), false); !d.Overcommit && memory+g.memory() > d.budgetAt(&e.Place) {
			return false
		}
	}
	return true
}
