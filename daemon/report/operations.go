package report

import (
	"context"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/locks"
)

// keptOperations is how many ended operations can still be read.
const keptOperations = 64

// operations keeps the running and the ended operations. It returns copies.
type operations struct {
	now func() time.Time

	mu  locks.Mutex[locks.Leaf] // guards what follows
	all []*operation            // oldest first
}

type operation struct {
	op   api.Operation
	wake chan struct{} // closed at the next change
}

// Begin adds a running operation.
func (o *operations) Begin(id, kind, by string, plan api.Plan) api.Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	plan.Steps = slices.Clone(plan.Steps) // The caller sends its plan while the steps change here.
	for i := range plan.Steps {
		plan.Steps[i].State = "pending"
	}
	op := &operation{wake: make(chan struct{}), op: api.Operation{
		ID: id, Kind: kind, State: "running", Version: 1, By: by, Plan: plan, Started: now,
	}}
	// An id names one operation: a retry that finds nothing to do has the id of the one before it.
	o.all = slices.DeleteFunc(o.all, func(p *operation) bool { return p.op.Finished != nil && p.op.ID == id })
	o.all = append(o.all, op)
	for len(o.all) > keptOperations && o.forgetLocked() {
	}
	return copyOf(op)
}

// forgetLocked removes the oldest ended operation of the caller with the most of them, and reports whether there is one. Leases
// of members make operations of the daemon, which must not push out those of administrators.
func (o *operations) forgetLocked() bool {
	ended, most := map[string]int{}, ""
	for _, p := range o.all {
		if p.op.Finished == nil {
			continue
		}
		by := p.op.By
		if ended[by]++; ended[by] > ended[most] {
			most = by
		}
	}
	i := slices.IndexFunc(o.all, func(p *operation) bool { return p.op.Finished != nil && p.op.By == most })
	if i >= 0 {
		o.all = slices.Delete(o.all, i, i+1)
	}
	return i >= 0
}

// copyOf returns a copy that shares no changing part.
func copyOf(p *operation) api.Operation {
	c := p.op
	c.Plan.Steps = slices.Clone(c.Plan.Steps)
	return c
}

// Update changes an operation and wakes all callers that wait for it.
func (o *operations) Update(id string, f func(*api.Operation)) api.Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.findLocked(id)
	if p == nil {
		return api.Operation{}
	}
	f(&p.op)
	p.op.Version++
	close(p.wake)
	p.wake = make(chan struct{})
	return copyOf(p)
}

// End ends an operation.
func (o *operations) End(id, state string, err *api.Error) api.Operation {
	return o.Update(id, func(op *api.Operation) {
		now := o.now()
		op.State, op.Error, op.Finished = state, err, &now
	})
}

// List returns the operations that run and the last that ended, the oldest first.
func (o *operations) List() []api.OperationSummary {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]api.OperationSummary, len(o.all))
	for i, p := range o.all {
		out[i] = p.op.Summary()
	}
	return out
}

// Has reports whether an operation can be read.
func (o *operations) Has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.findLocked(id) != nil
}

func (o *operations) findLocked(id string) *operation {
	for _, p := range o.all {
		if p.op.ID == id {
			return p
		}
	}
	return nil
}

// Get returns an operation when its version is greater than after, when it has ended, or when ctx ends.
func (o *operations) Get(ctx context.Context, id string, after uint64) (api.Operation, bool) {
	for {
		o.mu.Lock()
		p := o.findLocked(id)
		if p == nil {
			o.mu.Unlock()
			return api.Operation{}, false
		}
		c, wake := copyOf(p), p.wake
		o.mu.Unlock()
		if c.Finished != nil || c.Version > after {
			return c, true
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return c, true
		}
	}
}
