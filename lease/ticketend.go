package lease

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
)

// Cancel removes the ticket from the queue, or frees its place if the lease was not started. Otherwise it does nothing.
func (k *Ticket) Cancel() {
	t := k.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !k.state.over() {
		k.endLocked(ticketCancelled, &api.Error{Kind: api.KindUnavailable, Message: "cannot place the lease: the request was cancelled"})
		t.queue = slices.DeleteFunc(t.queue, func(q *Ticket) bool { return q == k })
		k.reportEndedLocked()
	} else if e := t.leases[k.lease.ID]; e != nil && e.Generation == k.lease.Generation &&
		e.State == Placed && !e.busy && e.Process == (Process{}) {
		e.Reason = "the request was cancelled"
		t.removeLocked(e)
	} else {
		return
	}
	t.evaluateLocked()
}

// endLocked ends the ticket without a place.
func (k *Ticket) endLocked(as ticketState, err error) {
	k.err, k.unread = err, true
	k.moveLocked(as)
	k.t.retireIDLocked(k.lease.ID)
	k.lease.State = Ended
	k.signal()
}

// reportEndedLocked reports the end of a ticket that was reported before.
func (k *Ticket) reportEndedLocked() {
	if k.t.cfg.Changed != nil {
		k.t.cfg.Changed(k.lease.clone())
	}
}

// refuseLocked ends a ticket whose caller does not wait. It was kept only because an instance was being created.
func (k *Ticket) refuseLocked() {
	k.endLocked(ticketFailed, &api.Error{
		Kind:    api.KindUnavailable,
		Message: fmt.Sprintf("cannot place a lease of %s now: %s", k.tenant, k.waiting),
		Hint:    "wait for a place with --wait",
	})
	k.reportEndedLocked()
}
