package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
)

// Update is what Next returns: the ticket's position, or its place.
type Update struct {
	Lease    api.Lease
	Placed   bool
	Selected string // if placed: which grant, and why
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
		again := k.again
		k.t.mu.Unlock()
		if err := k.await(ctx, again); err != nil {
			return Update{}, err
		}
	}
}

// await waits for a change, or until the queue is to be evaluated again.
func (k *Ticket) await(ctx context.Context, again *time.Time) error {
	var due <-chan time.Time
	if again != nil {
		timer := time.NewTimer(again.Sub(k.t.cfg.Now()))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-k.changed:
	case <-due:
		k.t.mu.Lock()
		k.t.evaluateLocked()
		k.t.mu.Unlock()
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
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

// tenantNow is the name of its tenant, which a spec may change while it waits.
func (k *Ticket) tenantNow() string {
	k.t.mu.Lock()
	defer k.t.mu.Unlock()
	return k.tenant
}
