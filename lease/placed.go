package lease

import (
	"strings"
)

// placeLocked assigns the place that was found to the ticket.
func (k *Ticket) placeLocked(found *attempt, o *occupancy) {
	g, p, ends := found.grant, found.place, found.ends
	if len(k.candidates) > 1 && k.lease.State == requested { // No caller knows its id yet: the id gets the grant.
		k.id = newID(k.tenant, g.Spec.Name, k.t.cfg.Random, k.t.idInUseLocked)
		k.lease.ID = k.id
	}
	k.lease.Terms, k.lease.Place, k.lease.State = *g, *p, Placed
	k.lease.Terms.Only, k.lease.Terms.Chosen, k.lease.Terms.Placer = nil, nil, ""
	if k.lease.Slice = (Key{}); k.lease.inSlice() {
		k.lease.Slice = k.t.sliceLocked(g.Key())
	}
	k.selected = k.selectionReason(g, found.waiting)
	if k.lease.EndBy = nil; !ends.IsZero() && o.claimedAt(p, k.id) {
		k.lease.EndBy = &ends
	}
	if k.pending != nil {
		o.user(k.request.UID).pending--
	}
	e := &entry{Lease: k.lease.clone(), ticket: k, spec: k.t.view.Generation}
	k.t.leases[e.ID] = e
	k.t.addLeaseLocked(o, e)
	o.backfill.read = false
	k.position, k.waiting, k.unread = 0, "", true
	k.moveLocked(ticketPlaced)
	k.signal()
	k.t.changedLocked(&e.Lease)
}

// selectionReason states in one line which grant was chosen and for what reason.
func (k *Ticket) selectionReason(g *Grant, passed []string) string {
	s := "grant " + g.Spec.Name + " of " + g.Tenant + ": "
	switch {
	case k.request.Grant != "":
		return s + "requested"
	case len(k.candidates) == 1 && k.request.Kind != "":
		return s + "the only one that fits " + k.request.Kind
	case len(k.candidates) == 1:
		return s + "the only one that fits"
	case len(passed) > 0:
		return s + "selected automatically (" + strings.Join(passed, "; ") + ")"
	}
	return s + "selected automatically"
}
