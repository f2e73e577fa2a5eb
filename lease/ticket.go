package lease

import (
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Ticket is one request that waits for a place or has just got one. One goroutine reads it with Next; Cancel may be
// called from any.
type Ticket struct {
	t       *Table
	id      string
	tenant  string
	changed chan struct{} // has one token if something changed

	// The table's lock guards all fields below.
	lease      Lease
	request    Request
	sequence   uint64
	candidates []Grant
	state      ticketState
	err        error // why it failed or was cancelled
	selected   string
	position   int // in the queue, from 1
	waiting    string
	unread     bool // Next has not returned the last change yet

	pending  *PendingInstance // planned and creating: the instance
	ends     time.Time        // when a lease in it ends at the latest; zero: that is not known
	claimed  *PendingInstance // without capacity: what it should get next
	avoided  map[gpu.UUID]time.Time
	deadline time.Time // of Await, where the request has a limit

	order    ticketOrder // why it is where it is in the queue
	expected *time.Time  // when it starts at the latest, if leases run to their known ends
	reported *time.Time  // the same, as the last change had it
	again    *time.Time  // when it is tried again although nothing else changes; nil: it is not
	noStart  string      // why that is not known

	preempt     *preemption // chosen and preempting: the leases that are stopped for it; later, what they freed
	preemptions int         // how often leases were stopped for it
}

// rank returns the priority of the ticket's tenant.
func (k *Ticket) rank() int { return k.candidates[0].rank() }

// setWaiting updates the reason why the ticket waits.
func (k *Ticket) setWaiting(text string) {
	if text != k.waiting {
		k.waiting, k.unread = text, true
	}
}

// setPosition updates the ticket's position.
func (k *Ticket) setPosition(position int) {
	if position != k.position {
		k.position, k.unread = position, true
	}
	if k.unread {
		k.signal()
	}
}

func (k *Ticket) signal() {
	select {
	case k.changed <- struct{}{}:
	default: // the last change was not read yet
	}
}

// updateLocked evaluates the request again after the node or the spec changed.
func (k *Ticket) updateLocked(respec bool) {
	if k.recheckLocked() {
		return // One who is not a member any more learns nothing of the tenant.
	}
	_, candidates, err := k.t.resolveLocked(&k.request)
	if err != nil && !respec {
		return // A GPU that it names is missing, maybe for a moment: without a new spec nothing else can have changed.
	}
	if err == nil {
		var left []Grant
		if left, err = k.t.feasibleLocked(&k.request, candidates); err == nil {
			candidates = left
		} else if !respec {
			// A GPU that is missing for a moment does not end the wait; a spec with no place for the request does.
			err = nil
		}
	}
	if err != nil {
		k.endLocked(ticketFailed, err)
		k.reportEndedLocked()
		return
	}
	k.candidates = candidates
}

func (k *Ticket) wireLocked() api.Lease {
	w := k.lease.Wire()
	w.Position, w.Waiting, w.ExpectedStart = k.position, k.waiting, k.reported
	if k.position > 0 {
		w.PositionReason = k.positionReason()
		w.InUseBy = k.inUseByLocked()
		if k.reported == nil {
			w.StartUnknown = k.noStart
		}
	}
	return w
}
