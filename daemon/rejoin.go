package daemon

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// returnTime is how long those who waited in the queue when the daemon ended have to come back, before those who came
// after them are served.
const returnTime = 3 * time.Second

// awaitReturns gives those who waited in an earlier life the time to come back.
func (d *Leases) awaitReturns() {
	if !d.table.Expecting() {
		return
	}
	d.tasks.Go(func() {
		select {
		case <-d.tasks.Context().Done():
		case <-time.After(returnTime):
			d.table.ForgetExpected()
		}
	})
}

// askedBefore answers a request that was made before with the same key, and whose answer was lost on the way because the
// daemon ended. It tells what that came to; ok is false when it is new.
func (d *Leases) askedBefore(c *call, q *api.LeaseRequest) (err error, ok bool) {
	if q.Key == "" {
		return nil, false
	}
	l, ok := d.keyed(c, q)
	if !ok {
		return nil, false
	}
	answer := api.LeaseGrant{Chosen: "the lease that was asked for before"}
	if l.State != lease.Gone {
		ctx, cancel := context.WithTimeout(c.ctx(), wallTimeout)
		defer cancel()
		if l, ok = d.awaitRunning(ctx, l); !ok {
			return nil, false // It came to nothing: this is a new request.
		}
		var err error
		if answer.Environment, answer.Unset, err = d.policy.environment(ctx, &l); err != nil {
			return err, true
		}
	}
	wire := l.Wire()
	if e, gone := d.endings.get(l.ID); gone && e.Lease.Generation == l.Generation {
		wire = e.wire()
	}
	answer.Lease = &wire
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	startPart(c.w)
	_ = json.NewEncoder(c.w).Encode(answer) // The caller went away again.
	return nil, true
}

// keyed finds the lease of an earlier request. One that the asking process is in must be of this process; one that nobody
// waits for may have ended already.
func (d *Leases) keyed(c *call, q *api.LeaseRequest) (lease.Lease, bool) {
	for _, l := range d.table.Live() {
		if l.Key != q.Key || l.UID != c.caller.uid || l.State == lease.Ending {
			continue
		}
		if l.Held == lease.HeldDetached && q.Detach != nil || l.Held == lease.HeldRun && l.Process == lease.Process(c.caller.process) {
			return l, true
		}
	}
	if q.Detach == nil {
		return lease.Lease{}, false
	}
	for _, e := range d.endings.all() {
		if e.Lease.Key == q.Key && e.Lease.UID == c.caller.uid && e.Lease.Held == lease.HeldDetached {
			return e.Lease, true
		}
	}
	return lease.Lease{}, false
}

// awaitRunning waits for a start that is under way.
func (d *Leases) awaitRunning(ctx context.Context, l lease.Lease) (lease.Lease, bool) {
	for {
		next := d.departures.next()
		now, ok := d.table.Get(l.ID)
		if !ok || now.Generation != l.Generation || now.State == lease.Ending {
			return l, false
		}
		if now.State == lease.Running {
			return now, true
		}
		select {
		case <-next:
		case <-ctx.Done():
			return l, false
		}
	}
}
