package lease

import (
	"context"
	"fmt"
	"slices"
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
	noStart  string      // why that is not known

	preempt     *preemption // chosen and preempting: the leases that are stopped for it; later, what they freed
	preemptions int         // how often leases were stopped for it
}

// Update is what Next returns: the ticket's position, or its place.
type Update struct {
	Lease    api.Lease
	Placed   bool
	Selected string // if placed: which grant, and why
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

// tenantNow is the name of its tenant, which a spec may change while it waits.
func (k *Ticket) tenantNow() string {
	k.t.mu.Lock()
	defer k.t.mu.Unlock()
	return k.tenant
}

// ID returns the lease's id; it is the same before and after placement.
func (k *Ticket) ID() string { return k.id }

// Next waits for a change and returns it; the first call returns the current position. After Placed or an error the
// ticket does not change any more. It fails with the context's error, or with an *api.Error if the request can no
// longer be satisfied.
func (k *Ticket) Next(ctx context.Context) (Update, error) {
	for {
		k.t.mu.Lock()
		if k.unread {
			k.unread = false
			u := Update{Lease: k.wireLocked(), Placed: k.state == ticketPlaced, Selected: k.selected}
			err := k.err
			k.t.mu.Unlock()
			return u, err
		}
		k.t.mu.Unlock()
		select {
		case <-k.changed:
		case <-ctx.Done():
			return Update{}, ctx.Err()
		}
	}
}

// Await waits until the ticket is placed, and calls waiting, which may be nil, each time its position or reason
// changes. When the context ends or the request's Wait has passed since the first call the ticket is cancelled.
func (k *Ticket) Await(ctx context.Context, waiting func(api.Lease)) (Update, error) {
	limit := ctx
	if w := k.request.Wait; w != nil && *w > 0 {
		if k.deadline.IsZero() {
			k.deadline = time.Now().Add(*w)
		}
		var cancel context.CancelFunc
		limit, cancel = context.WithDeadline(ctx, k.deadline)
		defer cancel()
	}
	last := ""
	for {
		u, err := k.Next(limit)
		switch {
		case err == nil && u.Placed:
			return u, nil
		case err == nil:
			if last == "" && k.request.Key != "" {
				// A position in the queue is saved before it is reported, so that the caller can claim it after a
				// restart. Without the record the request would only be queued again at the end.
				_ = k.t.save(limit)
			}
			last = u.Lease.Waiting
			if waiting != nil {
				waiting(u.Lease)
			}
			continue
		case limit.Err() == nil: // the table refused
			return Update{}, err
		}
		k.Cancel()
		if ctx.Err() != nil {
			return Update{}, fmt.Errorf("cannot wait for a place any longer: %w", context.Cause(ctx))
		}
		return Update{}, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot place a lease of %s: waited %s; %s",
			k.tenantNow(), api.Duration(k.request.Wait.Round(time.Millisecond)), last), Hint: "wait longer, or ask for something else"}
	}
}

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
