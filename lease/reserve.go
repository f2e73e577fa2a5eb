package lease

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/text"
)

// reserve finds the places that are kept free for reserved grants, and adds them to the occupancy, which has the live
// leases already. A place that is still possible is kept: a reservation that moved could use the last free capacity.
// The second result names the grants whose places could not all be found; no lease is ended for them.
func reserve(v *View, o *occupancy, before map[Key][]Place, live map[Key][]Place) (map[Key][]Place, []Unmet) {
	if v.DriverUnavailable != "" {
		for i := range v.Grants {
			if g := &v.Grants[i]; g.Spec.Reserved {
				for j := range before[g.Key()] {
					o.add(g, &before[g.Key()][j], true)
				}
			}
		}
		return before, nil
	}
	r := reserving{v: v, o: o, now: map[Key][]Place{}}
	for i := range v.Grants {
		if v.Grants[i].Spec.Reserved {
			r.grants = append(r.grants, &v.Grants[i])
		}
	}
	slices.SortStableFunc(r.grants, func(a, b *Grant) int { return cmp.Compare(b.rank(), a.rank()) })
	// Existing places come first for all grants, so that the search below cannot take one grant's place for another.
	for _, g := range r.grants {
		r.keep(g, live[g.Key()], func(*Place) bool { return true })
		r.keep(g, before[g.Key()], func(p *Place) bool { return placeStillFree(g, p, v, o) && !oversubscribes(g, p, v, o) })
	}
	for g, p := range sharedPlaces(v, o, r.grants, func(g *Grant) bool { return len(r.now[g.Key()]) == 0 }) {
		r.take(g, p)
	}
	var unmet []Unmet
	for _, g := range r.grants {
		for r.lacks(g) {
			p, why := r.find(g)
			if p == nil {
				unmet = append(unmet, Unmet{g.Key(), fmt.Sprintf("%s/%s: %d of %d reserved %s cannot be kept free: %s",
					g.Tenant, g.Spec.Name, g.places()-len(r.now[g.Key()]), g.places(), text.Plural(g.places(), "place"), why)})
				break
			}
			r.take(g, p)
		}
	}
	return r.now, unmet
}

// reserving is the search of places for all reserved grants.
type reserving struct {
	v      *View
	o      *occupancy
	grants []*Grant        // the reserved ones, by priority
	now    map[Key][]Place // that they have
}

func (r *reserving) lacks(g *Grant) bool { return len(r.now[g.Key()]) < g.places() }

func (r *reserving) take(g *Grant, p *Place) {
	r.now[g.Key()] = append(r.now[g.Key()], *p)
	r.o.add(g, p, true)
}

// keep takes those of a grant's places that still are possible.
func (r *reserving) keep(g *Grant, places []Place, may func(*Place) bool) {
	for i := range places {
		p := &places[i]
		has := slices.ContainsFunc(r.now[g.Key()], func(q Place) bool { return q.same(p) })
		if r.lacks(g) && !has && placeStillAllowed(g, p, r.v) && placeStillFits(g, p, r.v, r.o) && may(p) {
			r.take(g, p)
		}
	}
}

// find returns another place for a grant, or why there is none.
func (r *reserving) find(g *Grant) (*Place, string) {
	// The probe has no name, so the grant's own places and its number of leases do not count.
	probe := *g
	probe.Spec.Name = ""
	p, ob := place(&probe, r.v, r.o)
	if p != nil {
		return p, ""
	}
	if ob.canCreate { // Its capacity is kept free: the instance is created for the first request.
		if d, slot := r.o.findSlot(&probe, r.v, requester{}, nil); d != nil {
			return &Place{GPUs: []gpu.UUID{d.UUID}, Instance: &slot.Placement, Profile: slot.Name}, ""
		}
	}
	return nil, ob.text
}

// sharedPlaces chooses places for the grants that have a share, if there are places for all of them: chosen one by one,
// a grant could take the only GPU that another may use.
func sharedPlaces(v *View, o *occupancy, grants []*Grant, lacks func(*Grant) bool) iter.Seq2[*Grant, *Place] {
	return func(yield func(*Grant, *Place) bool) {
		for _, mode := range []string{api.ModeTimeslice, api.ModeMPS} {
			var without []*Grant
			for _, g := range grants {
				if g.Kind() == mode && lacks(g) {
					without = append(without, g)
				}
			}
			if len(without) == 0 {
				continue
			}
			var on []sharedCapacity
			for i := range v.GPUs {
				if d := &v.GPUs[i]; d.Mode == mode && d.Closed == "" {
					on = append(on, o.at(d.UUID).capacityForReserved(d))
				}
			}
			chosen, _ := fit(without, on, fitStepsForPlace)
			for i, j := range chosen {
				if !yield(without[i], &Place{GPUs: []gpu.UUID{on[j].gpu.UUID}, Devices: []gpu.UUID{on[j].gpu.UUID}}) {
					return
				}
			}
		}
	}
}

// capacityForReserved returns what reserved grants that have no place yet may take of a shared GPU. Shares of live leases
// that are not reserved only count under MPS and with latency: low: others that are time-sliced are weights.
func (t *gpuUsage) capacityForReserved(d *GPUView) sharedCapacity {
	memory, load := t.granted(Key{}, false)
	memory += t.unfree(&divisible{gpu: d})
	_, share := t.granted(Key{}, d.Mode == api.ModeTimeslice)
	return sharedCapacity{
		gpu:    d,
		memory: d.budget() - min(memory, d.budget()),
		share:  fullShare - share,
		low:    t.lowLatencyLeft(Key{}, false),
		load:   load,
	}
}

// Unmet is a reserved grant whose place could not be kept free, with the reason.
type Unmet struct {
	Grant  Key
	Reason string
}

// placesAreFixed reports whether the places of a reserved grant cannot move: it may use no more GPUs than it needs.
func (g *Grant) placesAreFixed(v *View) bool {
	n := 0
	for i := range v.GPUs {
		if g.mayUse(&v.GPUs[i]) {
			n++
		}
	}
	return n <= g.places()*max(g.Spec.Exclusive, 1)
}

// placeStillAllowed reports whether the grant as it is in the spec now may be placed there.
func placeStillAllowed(g *Grant, p *Place, v *View) bool {
	if g.Kind() == api.ModeExclusive && len(p.GPUs) != g.Spec.Exclusive || (g.Kind() == api.ModeMIG) != (p.Instance != nil) {
		return false
	}
	for _, id := range p.GPUs {
		if d := v.gpu(id); d == nil || d.Missing || !g.mayUse(d) {
			return false
		}
	}
	return true
}

// placeStillFits reports whether the grant's memory and share, as they are in the spec now, fit there next to the
// others.
func placeStillFits(g *Grant, p *Place, v *View, o *occupancy) bool {
	if g.share() == nil {
		return true
	}
	for _, id := range p.GPUs {
		d := v.gpu(id)
		memory, share := o.at(id).granted(g.Key(), false)
		if !d.Overcommit && (memory+g.memory() > d.budget() || g.Kind() == api.ModeMPS && share+g.percent() > fullShare) {
			return false
		}
		if !g.fitsLowLatency(o.at(id).lowLatencyLeft(g.Key(), false)) {
			return false
		}
	}
	return true
}

// oversubscribes reports whether the shares of the grant and of the other reserved grants are more than the time of a GPU
// of the place.
func oversubscribes(g *Grant, p *Place, v *View, o *occupancy) bool {
	return slices.ContainsFunc(p.GPUs, func(id gpu.UUID) bool { return o.at(id).oversubscribedBy(g, v.gpu(id)) })
}

// oversubscribedBy reports whether the shares of the grant and of the other reserved grants here are more than the time
// of the GPU.
func (t *gpuUsage) oversubscribedBy(g *Grant, d *GPUView) bool {
	_, share := t.granted(g.Key(), true)
	return g.Kind() == api.ModeTimeslice && !d.Overcommit && share+g.percent() > fullShare+shareTolerance
}

// placeStillFree reports whether a place that was kept free still exists and is free for the grant.
func placeStillFree(g *Grant, p *Place, v *View, o *occupancy) bool {
	for _, id := range p.GPUs {
		d, t := v.gpu(id), o.at(id)
		switch g.Kind() {
		case api.ModeMIG:
			i := slices.IndexFunc(d.Instances, func(in InstanceView) bool { return in.Placement == *p.Instance })
			if i < 0 && d.DynamicProfiles != nil {
				if !slotStillFree(g, p, d, t) {
					return false
				}
				continue
			}
			if i < 0 || d.Instances[i].Unusable != "" {
				return false
			}
			of, ok := d.Instances[i].find(p.Compute)
			if !ok || !g.matches(&of.ProfileView) || !t.instances[*p.Instance].at(p.Compute).freeFor(g.Key()) {
				return false
			}
		case api.ModeExclusive:
			if !t.exclusive.freeFor(g.Key()) {
				return false
			}
		}
	}
	return true
}

// slotStillFree reports whether an instance could still be created in the slot that is kept free for one.
func slotStillFree(g *Grant, p *Place, d *GPUView, t *gpuUsage) bool {
	if !t.free(*p.Instance, "", g.Key(), &requester{}) ||
		slices.ContainsFunc(d.Instances, func(in InstanceView) bool { return in.Pinned && in.Placement.Overlaps(*p.Instance) }) {
		return false
	}
	return slices.ContainsFunc(d.DynamicProfiles.GI, func(q gpu.Profile) bool {
		_, ok := g.created(d, &q)
		return ok && slices.Contains(q.Placements, *p.Instance)
	})
}

// occupancyLocked returns what leases and reservations use; it renews the reservations.
func (t *Table) occupancyLocked() *occupancy {
	o := t.liveLocked()
	places := map[Key][]Place{}
	for _, e := range t.sortedLocked() {
		places[e.Terms.Key()] = append(places[e.Terms.Key()], e.Place)
	}
	t.reserved, t.unmet = reserve(&t.view, o, t.reserved, places)
	return o
}

// addReservedLocked adds the places that are kept free for the reserved grants for which include is true.
func (t *Table) addReservedLocked(o *occupancy, include func(*Grant) bool) {
	for i := range t.view.Grants {
		g := &t.view.Grants[i]
		if !g.Spec.Reserved || !include(g) {
			continue
		}
		for j := range t.reserved[g.Key()] {
			o.add(g, &t.reserved[g.Key()][j], true)
		}
	}
}

// Unmet returns the reserved grants whose places could not all be kept free.
func (t *Table) Unmet() []Unmet {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.unmet)
}
