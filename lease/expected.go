package lease

import (
	"slices"
	"sort"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// maxExpected is for how many requests the start is computed in one evaluation. What further ones claim is not lent.
const maxExpected = 16

// expectedStart is when a request starts at the latest, and where: in a place, or in an instance that may be created by then.
type expectedStart struct {
	at     time.Time // zero: in a moment
	grant  int       // of the candidates
	place  *Place
	slot   *PendingInstance
	second *expectedStart // with what earlier requests claim left to them; nil if they do not claim this place, or there is no other
}

// awaitLocked records that the ticket waits. The start of those behind it that wait for the same GPUs is not known, because
// theirs depends on it.
func (k *Ticket) awaitLocked(o *occupancy) {
	b := &o.backfill
	if b.awaited == nil {
		b.awaited = map[string]bool{}
	}
	behind := false
	for i := range k.candidates {
		if mode := k.candidates[i].Spec.Mode(); b.awaited[mode] {
			k.expected, behind = nil, true
		}
	}
	for i := range k.candidates {
		b.awaited[k.candidates[i].Spec.Mode()] = true
	}
	noStart := ""
	if k.expected == nil {
		noStart = k.whyNoStartLocked(behind)
	}
	if !equalTimes(k.reported, k.expected) || noStart != k.noStart {
		k.reported, k.noStart, k.unread = k.expected, noStart, true
	}
}

func equalTimes(a, b *time.Time) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Equal(*b))
}

// opensSoon reports whether a GPU that the grant may use is closed only for a moment, or used by a process of no lease.
func (k *Ticket) opensSoon(g *Grant) bool {
	return slices.ContainsFunc(k.t.view.GPUs, func(d GPUView) bool {
		return g.mayUse(&d) &&
			(d.Closed != "" && d.ReopensSoon || d.Occupied != "" || slices.ContainsFunc(d.Instances, func(in InstanceView) bool { return in.occupied() }))
	})
}

// expectLocked returns when a request that has no place starts at the latest; nil if that is not known.
func (k *Ticket) expectLocked(o *occupancy) *expectedStart {
	ends := k.t.endsLocked(o)
	if len(ends) == 0 || k.request.Wait == nil || k.request.Immediate || len(k.t.unmet) > 0 || o.backfill.computed >= maxExpected {
		return nil
	}
	o.backfill.computed++
	var best *expectedStart
	for i := range k.candidates {
		if k.opensSoon(&k.candidates[i]) {
			return nil // It may start in a moment, on a GPU that is closed only now.
		}
		if x := k.expectGrantLocked(o, i, ends); x != nil && (best == nil || x.at.Before(best.at)) {
			best = x
		}
	}
	if best != nil && !best.at.After(k.t.cfg.Now()) {
		best.at = time.Time{} // What is in its way is about to end: nothing is lent any more.
	}
	return best
}

// expectGrantLocked is expectLocked for one candidate.
func (k *Ticket) expectGrantLocked(o *occupancy, candidate int, ends []knownEnd) *expectedStart {
	x := k.firstStartLocked(candidate, ends, nil)
	if x == nil || k.candidates[candidate].Kind() == api.ModeExclusive || !o.claims(x, &k.candidates[candidate]) {
		return x // Of whole GPUs each request claims all that are idle.
	}
	x.second = k.firstStartLocked(candidate, ends, o)
	return x
}

// firstStartLocked finds the first of the ends at which a candidate has a place, and the place; nil if there is none. claimed has
// what earlier requests claim; nil: that counts as free.
func (k *Ticket) firstStartLocked(candidate int, ends []knownEnd, claimed *occupancy) *expectedStart {
	g := &k.candidates[candidate]
	var x *expectedStart
	fits := func(n int) bool {
		free, left := k.t.withoutLocked(ends[:n])
		if claimed != nil {
			left.claimAs(claimed)
		}
		who := left.requesterOf(k)
		if who.mostLeases() != "" {
			return false
		}
		p, ob := placeFor(g, &free, left, who)
		if p != nil {
			x = &expectedStart{grant: candidate, place: p}
			return true
		}
		if !ob.canCreate {
			return false
		}
		d, r := left.findSlot(g, &free, who, nil)
		if d == nil {
			return false
		}
		x = &expectedStart{grant: candidate, slot: &PendingInstance{Ticket: k.id, GPU: d.UUID, InstanceSlot: r}}
		return true
	}
	if !fits(len(ends)) {
		return nil
	}
	n := sort.Search(len(ends), fits)
	if n == 0 {
		return nil // Only what earlier requests claim is in its way.
	}
	at := ends[n-1].at
	for n < len(ends) && ends[n].at.Equal(at) {
		n++
	}
	fits(n)
	x.at = at
	return x
}

// withoutLocked returns the node as it is after the end of leases, with the places that are kept free for reserved grants and the
// instances that are being created, and without what requests claim that wait.
func (t *Table) withoutLocked(ended []knownEnd) (View, *occupancy) {
	free := t.view
	free.GPUs = slices.Clone(t.view.GPUs)
	over, given := make(map[*entry]bool, len(ended)), map[*Ticket]bool{}
	for i := range ended {
		e := ended[i].lease
		if e == nil {
			given[ended[i].ticket] = true
			continue
		}
		over[e] = true
		if j := free.index(e.Place.GPUs[0]); j < len(free.GPUs) && e.Place.Instance != nil {
			free.GPUs[j].Instances = unpinned(free.GPUs[j].Instances, *e.Place.Instance)
		}
		free.withoutMemoryOf(e)
	}
	left := newOccupancy()
	left.capacity, left.memoryUse = t.cfg.Capacity, t.cfg.MemoryUse
	for _, e := range t.leases {
		if !over[e] {
			t.addLeaseLocked(left, e)
		}
	}
	for _, k := range t.queue {
		if k.pending != nil && !given[k] {
			left.claimPending(k)
		}
	}
	t.addReservedLocked(left, func(*Grant) bool { return true })
	return free, left
}

// claims reports whether an earlier request claims the place of an expected start, or a part of it.
func (o *occupancy) claims(x *expectedStart, g *Grant) bool {
	overlaps := func(id gpu.UUID, at gpu.Placement, device gpu.UUID) bool {
		return slices.ContainsFunc(o.at(id).claims, func(c slotClaim) bool { return !c.pending && c.overlaps(at, device) })
	}
	switch {
	case x.slot != nil:
		return overlaps(x.slot.GPU, x.slot.Placement, "")
	case x.place.Instance != nil && g.share() == nil:
		return overlaps(x.place.GPUs[0], *x.place.Instance, x.place.Compute)
	}
	return slices.ContainsFunc(x.place.GPUs, func(id gpu.UUID) bool { return o.at(id).claimed })
}

// claimAs takes over what is claimed in another occupancy, until an end that is not known.
func (o *occupancy) claimAs(other *occupancy) {
	for id, u := range other.gpus {
		of := o.at(id)
		of.claimed, of.preempted = u.claimed, u.preempted
		for _, c := range u.claims {
			if !c.pending {
				c.start = time.Time{}
				of.claims = append(of.claims, c)
			}
		}
	}
}

// claimExpectedLocked claims the place that a request gets when leases have run to their ends. Until then it is lent: what is let in
// ends before the first start that is possible, wherever that is.
func (k *Ticket) claimExpectedLocked(o *occupancy, x *expectedStart, obstacles []*obstacle) {
	g := &k.candidates[x.grant]
	if x.second != nil {
		x.second.at = x.at
		k.claimExpectedLocked(o, x.second, obstacles)
	}
	switch {
	case x.slot != nil:
		o.claimUntil(x.slot, x.at)
	case x.place.Instance != nil && g.share() == nil:
		o.claimUntil(
			&PendingInstance{
				Ticket: k.id,
				GPU:    x.place.GPUs[0],
				InstanceSlot: InstanceSlot{
					Name:      x.place.Profile,
					Placement: *x.place.Instance,
					Compute:   x.place.Compute,
					ProfileID: noProfile,
				},
			},
			x.at,
		)
	case g.Kind() == api.ModeExclusive:
		for _, id := range obstacles[x.grant].claims {
			o.at(id).claim(x.at)
		}
	default:
		for _, id := range x.place.GPUs {
			o.at(id).claim(x.at)
		}
	}
}
