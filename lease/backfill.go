package lease

import (
	"slices"
	"sort"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// A request that waits claims a place, so that a stream of small ones cannot starve it. Most of the place is often free for
// long. A lease whose end is known, because gpushare stops it then, may have it meanwhile if it ends before the request would
// start. That is known if the leases that are in its way have known ends too: a lease without one is never assumed to end, and
// then nothing that the request claims is lent. Requests that wait only make the start later, so they are left out: a lease
// ends before the earliest start that is possible. But an earlier request may stay in that place without an end: then the later one
// claims the next place too, which must not go to a lease without an end meanwhile. If leases end earlier than they have to, the
// request may wait for one that was let in, but never longer than until the start that was expected.

// maxExpected is for how many requests the start is computed in one evaluation. What further ones claim is not lent.
const maxExpected = 16

// backfill is what one evaluation of the queue knows of ends.
type backfill struct {
	ends     []knownEnd // of leases; read again after a lease got a place
	read     bool
	computed int
	lends    bool            // an instance is claimed until a time that is known
	awaited  map[string]bool // modes of GPUs that an earlier request waits for
}

// mayLend reports whether the request may have an instance that others may not.
func (b *backfill) mayLend(who *requester) bool { return b.lends && !who.ends.IsZero() }

// knownEnd is a lease that ends at the latest at a time, or a request whose lease will when its instance is created.
type knownEnd struct {
	lease  *entry
	ticket *Ticket
	at     time.Time
}

// expectedStart is when a request starts at the latest, and where: in a place, or in an instance that may be created by then.
type expectedStart struct {
	at     time.Time // zero: in a moment
	grant  int       // of the candidates
	place  *Place
	slot   *PendingInstance
	second *expectedStart // with what earlier requests claim left to them; nil if they do not claim this place, or there is no other
}

// endFrom returns when a lease of the grant that starts at a time ends at the latest; zero if that is not known. The end of a
// lease in place does not end its processes.
func (k *Ticket) endFrom(g *Grant, start time.Time) time.Time {
	whole := k.request.MaxTime
	if whole == nil {
		whole = g.Spec.MaxTime
	}
	if whole == nil || k.t.view.Observing || k.lease.InPlace() {
		return time.Time{}
	}
	return start.Add(time.Duration(*whole))
}

// knownEndLocked returns when a lease ends at the latest; zero if that is not known.
func (t *Table) knownEndLocked(e *entry) time.Time {
	whole, _ := e.Time()
	switch {
	case t.view.Observing || e.InPlace():
		return time.Time{}
	case e.Expires != nil:
		return *e.Expires
	case e.EndBy != nil:
		return *e.EndBy
	case whole != nil && e.Started == nil:
		return t.cfg.Now().Add(time.Duration(*whole)) // It starts in a moment.
	}
	return time.Time{}
}

// addLeaseLocked records what a lease uses, and until when.
func (t *Table) addLeaseLocked(o *occupancy, e *entry) {
	o.add(&e.Terms, &e.Place, false)
	o.addUser(e.UID, &e.Terms, &e.Place, &t.view)
	o.joins(e.ID, &e.Place, &t.view)
	if e.Terms.share() == nil {
		return
	}
	end := t.knownEndLocked(e)
	for _, id := range e.Place.GPUs {
		s := o.shared(&e.Place, id).shares[e.Terms.Key()]
		s.own.add(e.Own)
		if e.Own.Memory == 0 && (e.State != Placed || e.Process != (Process{})) {
			s.own.others = append(s.own.others, e.ID)
		}
		s.endless = s.endless || end.IsZero()
		if end.After(s.until) {
			s.until = end
		}
	}
}

// endsBy reports whether the lease would end before an earlier request starts.
func (r *requester) endsBy(start time.Time) bool {
	return !start.IsZero() && !r.ends.IsZero() && !r.ends.After(start)
}

// claim keeps the GPU for a request that starts at the latest at a time; zero: that is not known.
func (t *gpuUsage) claim(start time.Time) {
	if !t.claimed || start.Before(t.start) {
		t.claimed, t.start = true, start
	}
}

// claimedBefore reports whether an earlier request waits for the GPU, and this one does not end before that starts.
func (t *gpuUsage) claimedBefore(who *requester) bool { return t.claimed && !who.endsBy(t.start) }

// lends reports whether another request claims a placement, or one compute instance of the instance there.
func (t *gpuUsage) lends(at gpu.Placement, device gpu.UUID, who *requester) bool {
	return slices.ContainsFunc(t.claims, func(c slotClaim) bool { return c.ticket != who.ticket && c.overlaps(at, device) })
}

// outlasts reports whether the grant has its share as long as a further lease of it would need it: no
// request that waits starts later by it.
func (s *grantShare) outlasts(who *requester) bool {
	return s != nil && (s.reserved || s.endless || !who.ends.IsZero() && !who.ends.After(s.until))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// claimedAt reports whether a place is one that an earlier request claims.
func (o *occupancy) claimedAt(p *Place, ticket string) bool {
	return slices.ContainsFunc(p.GPUs, func(id gpu.UUID) bool {
		t := o.at(id)
		return t.claimed || p.Instance != nil && t.lends(*p.Instance, p.Compute, &requester{ticket: ticket})
	})
}

// endsLocked lists what ends at a known time, the earliest first.
func (t *Table) endsLocked(o *occupancy) []knownEnd {
	b := &o.backfill
	if b.read {
		return b.ends
	}
	b.ends, b.read = b.ends[:0], true
	for _, e := range t.sortedLocked() {
		if at := t.knownEndLocked(e); !at.IsZero() {
			b.ends = append(b.ends, knownEnd{lease: e, at: at})
		}
	}
	for _, k := range t.queue {
		if k.pending != nil && !k.ends.IsZero() {
			b.ends = append(b.ends, knownEnd{ticket: k, at: k.ends})
		}
	}
	slices.SortStableFunc(b.ends, func(a, b knownEnd) int { return a.at.Compare(b.at) })
	return b.ends
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

// expectGrantLocked is expectLocked for one candidate.
func (k *Ticket) expectGrantLocked(o *occupancy, candidate int, ends []knownEnd) *expectedStart {
	x := k.firstStartLocked(candidate, ends, nil)
	if x == nil || k.candidates[candidate].Kind() == api.ModeExclusive || !o.claims(x, &k.candidates[candidate]) {
		return x // Of whole GPUs each request claims all that are idle.
	}
	x.second = k.firstStartLocked(candidate, ends, o)
	return x
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
