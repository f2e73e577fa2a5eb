package leases

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

// savedTicketTimeout is how long callers that waited in the queue when the daemon ended have to repeat their requests,
// before later requests are served.
const savedTicketTimeout = 3 * time.Second

// awaitSavedTickets drops the saved tickets after that time.
func (ls *Leases) awaitSavedTickets() {
	if !ls.Table.HasSavedTickets() {
		return
	}
	ls.Tasks.Go(func() {
		if loop.Pause(ls.Tasks.Context(), savedTicketTimeout) {
			ls.Table.DropSavedTickets()
		}
	})
}

// answerRepeated answers a request that was made before with the same key, and whose answer was lost because the daemon
// ended. It returns the lease of the earlier request; ok is false if there is none.
func (ls *Leases) answerRepeated(c *server.Call, q *api.LeaseRequest) (err error, ok bool) {
	if q.Key == "" {
		return nil, false
	}
	l, ok := ls.leaseByKey(c, q)
	if !ok {
		return nil, false
	}
	answer := api.LeaseGrant{Selected: "the lease of the earlier request"}
	if l.State != lease.Ended {
		ctx, cancel := context.WithTimeout(c.Ctx(), stop.IsolationTimeout)
		defer cancel()
		if l, ok = ls.awaitRunning(ctx, l); !ok {
			return nil, false // It was not started: this is a new request.
		}
		var err error
		if answer.Environment, answer.Unset, err = ls.Policy.Environment(ctx, &l); err != nil {
			return err, true
		}
	}
	wire := l.Wire()
	if e, ended := ls.Ended.get(l.ID); ended && e.Lease.Generation == l.Generation {
		wire = e.wire()
	}
	answer.Lease = &wire
	c.W.Header().Set("Content-Type", "application/x-ndjson")
	server.StartPart(c.W)
	_ = json.NewEncoder(c.W).Encode(answer) // The caller disconnected again.
	return nil, true
}

// leaseByKey finds the lease of an earlier request. A lease of the calling process must have the same process; a
// detached one may have ended already.
func (ls *Leases) leaseByKey(c *server.Call, q *api.LeaseRequest) (lease.Lease, bool) {
	for _, l := range ls.Table.Live() {
		if l.Key != q.Key || l.UID != c.Caller.UID || l.State == lease.Ending {
			continue
		}
		if l.Origin == lease.OriginDetached && q.Detach != nil ||
			l.Origin == lease.OriginRun && l.Process == lease.Process(c.Caller.Process) {
			return l, true
		}
	}
	if q.Detach == nil {
		return lease.Lease{}, false
	}
	e, ok := ls.Ended.find(func(l *lease.Lease) bool {
		return l.Key == q.Key && l.UID == c.Caller.UID && l.Origin == lease.OriginDetached
	})
	return e.Lease, ok
}

// awaitRunning waits for a start that is in progress.
func (ls *Leases) awaitRunning(ctx context.Context, l lease.Lease) (lease.Lease, bool) {
	for {
		next := ls.LeaseChanges.Next()
		now, ok := ls.Table.Get(l.ID)
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
