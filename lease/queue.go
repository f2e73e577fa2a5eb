package lease

import (
	"slices"
	"strings"
	"time"
)

// evaluateLocked places what can be placed, in the order of the queue, and updates the position of the other tickets.
func (t *Table) evaluateLocked() {
	t.countUseLocked()
	t.order.sort(t)
	for again := true; again; {
		again = t.passLocked()
	}
	anyPending, anyPreempted := false, false
	for i, k := range t.queue {
		k.setPosition(i + 1)
		anyPending = anyPending || k.state == ticketPlanned
		anyPreempted = anyPreempted || k.state == ticketChosen
	}
	if anyPreempted && t.cfg.Preempted != nil {
		t.cfg.Preempted()
	}
	if anyPending && t.cfg.InstancePending != nil {
		t.cfg.InstancePending()
	}
}

// passLocked tries each ticket once, and reports whether another pass is needed: a reserved grant that was placed elsewhere frees the
// place that was reserved for it, a user who has a lease more may not have what an earlier request of theirs claims, and what a
// request claimed that is refused is free for others.
func (t *Table) passLocked() (again bool) {
	t.queue = slices.DeleteFunc(t.queue, func(k *Ticket) bool { return k.recheckLocked() }) // What they claimed is free.
	o := t.occupancyLocked()
	t.claimPendingLocked(o)
	left := t.queue[:0]
	for _, k := range t.queue {
		switch {
		case k.tryLocked(o):
			again = again || k.lease.Terms.Spec.Reserved || k.request.limit(&t.view) != (PerUser{})
		case k.lease.State == Queued && k.request.Wait == nil && !k.state.kept():
			k.refuseLocked()
			again = true
		default:
			k.awaitLocked(o)
			left = append(left, k)
		}
	}
	clear(t.queue[len(left):])
	t.queue = left
	return again
}

// attempt is what was found when a ticket was tried.
type attempt struct {
	grant *Grant // with its place; nil if there is none
	place *Place
	ends  time.Time // when a lease there ends at the latest; zero: that is not known

	waiting   []string // of each candidate without a place
	obstacles []*obstacle
	creatable []int // candidates for which an instance might be created
	soon      bool  // a place may open in a moment
}

// tryLocked places the ticket, or claims what it should get next.
func (k *Ticket) tryLocked(o *occupancy) (placed bool) {
	k.expected, k.again = nil, nil
	if k.state == ticketSoon || k.state == ticketChosen {
		k.moveLocked(ticketWaiting) // No lease is stopped yet: they are chosen again, because they may have changed.
	}
	if k.withheldLocked() {
		return false
	}
	who := o.requesterOf(k)
	if why := who.mostLeases(); why != "" {
		k.setWaiting(why)
		return false
	}
	if until, why := k.owesLocked(&who); why != "" {
		k.expected, k.again = &until, &until
		k.setWaiting(why) // Others do not wait for it: it claims nothing.
		return false
	}
	found := k.findLocked(o, who)
	if found.place != nil {
		k.placeLocked(found, o)
		return true
	}
	if k.pending == nil && !k.request.Immediate {
		k.planInstanceLocked(o, who, found.creatable)
	}
	preempted, ok := "", false
	if k.pending == nil {
		if preempted, ok = k.preemptLocked(o, who); ok {
			k.setWaiting(preempted)
			return false
		}
	}
	k.claimLocked(o, who, found.obstacles, found.creatable)
	text := strings.Join(found.waiting, "; ")
	if preempted != "" {
		text += "; " + preempted
	}
	switch {
	case k.pending != nil:
		text = k.pendingText()
	case found.soon:
		k.moveLocked(ticketSoon)
	}
	k.setWaiting(text)
	return false
}

// withheldLocked reports whether the ticket gets no place now, whatever is free.
func (k *Ticket) withheldLocked() bool {
	if why := k.t.view.Maintenance; why != "" {
		k.withholdLocked(why)
		return true
	}
	if k.t.yieldsToSavedLocked(k) {
		k.setWaiting(savedTicketsText)
		return true
	}
	why := k.request.standing(k.tenant).Unsure
	if why != "" {
		k.withholdLocked(why) // Others do not wait for an answer of the directory: it claims nothing.
	}
	return why != ""
}

// findLocked searches a place for the first candidate that has one.
func (k *Ticket) findLocked(o *occupancy, who requester) *attempt {
	var x attempt
	for i := range k.candidates {
		g := &k.candidates[i]
		who.ends = k.endFrom(g, k.t.cfg.Now())
		p, ob := placeFor(g, &k.t.view, o, who)
		if p != nil {
			x.grant, x.place, x.ends = g, p, who.ends
			return &x
		}
		x.obstacles = append(x.obstacles, ob)
		x.soon = x.soon || ob.mayFitSoon
		if ob.canCreate {
			x.creatable = append(x.creatable, i)
		}
		if len(k.candidates) > 1 {
			x.waiting = append(x.waiting, g.Spec.Name+": "+ob.text)
		} else {
			x.waiting = append(x.waiting, ob.text)
		}
	}
	return &x
}

// withholdLocked keeps the ticket waiting for what may take long. Who does not wait for a place does not wait for that, even if an
// instance is being created.
func (k *Ticket) withholdLocked(why string) {
	if k.state == ticketCreating && k.request.Wait == nil {
		k.moveLocked(k.withoutInstance())
	}
	k.setWaiting(why)
}

// claimLocked claims what a ticket without a place should get next.
func (k *Ticket) claimLocked(o *occupancy, who requester, obstacles []*obstacle, creatable []int) {
	if k.pending == nil {
		if x := k.expectLocked(o); x != nil {
			if k.claimed = nil; !x.at.IsZero() {
				k.expected = &x.at
			}
			k.claimExpectedLocked(o, x, obstacles)
			return
		}
	}
	for _, ob := range obstacles {
		for _, id := range ob.claims {
			o.at(id).claim(time.Time{})
		}
	}
	if k.pending == nil && !k.request.Immediate {
		k.claimInstanceLocked(o, who, creatable)
	}
}
