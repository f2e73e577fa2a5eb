package lease

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// A request that waits claims a place, so that a stream of small ones cannot starve it. Most of the place is often free for
// long. A lease whose end is known, because gpushare stops it then, may have it meanwhile if it ends before the request would
// start. That is known if the leases that are in its way have known ends too: a lease without one is never assumed to end, and
// then nothing that the request claims is lent. Requests that wait only make the start later, so they are left out: a lease
// ends before the earliest start that is possible. But an earlier request may stay in that place without an end: then the later one
// claims the next place too, which must not go to a lease without an end meanwhile. If leases end earlier than they have to, the
// request may wait for one that was let in, but never longer than until the start that was expected.

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
