package worker

import (
	"context"
	"sync/atomic"

	"github.com/gpushare/gpushare/gpu"
)

// slot lets one operation at a time use a GPU, or the node. A reading that yields lets lists of one instance in between: the worker
// reads them between two lists of its own.
type slot struct {
	taken chan struct{} // has one token while it is taken
	list  chan struct{} // has one token while an operation that may go in between waits or runs: one at a time does
	offer chan *slotUse // of an operation that yields
}

func newSlot() *slot {
	return &slot{taken: make(chan struct{}, 1), list: make(chan struct{}, 1), offer: make(chan *slotUse)}
}

// slotUse is one use of a slot: by one operation, and by those that it lets in between. The slot is free again when all have ended, so
// that none of them waits in the worker for an operation that may take longer.
type slotUse struct {
	slot  *slot
	users atomic.Int32
	first *pending // the operation that lets others in; the client's mu guards it
}

// slot returns the slot of one GPU.
func (c *Client) slot(id gpu.UUID) *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.slots[id]
	if s == nil {
		s = newSlot()
		c.slots[id] = s
	}
	return s
}

// take waits for the slot, or for an operation that lets this one in between. The caller calls release, which does not wait.
func (s *slot) take(ctx context.Context, info opInfo) (t *slotUse, release func(), err error) {
	if !info.between {
		select {
		case s.taken <- struct{}{}:
			t = newUse(s)
			return t, t.release, nil
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	select {
	case s.list <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	select {
	case s.taken <- struct{}{}:
		t = newUse(s)
	case t = <-s.offer:
	case <-ctx.Done():
		<-s.list
		return nil, nil, ctx.Err()
	}
	return t, func() { t.release(); <-s.list }, nil
}

// newUse is the use of a slot by the operation that took it.
func newUse(s *slot) *slotUse {
	t := &slotUse{slot: s}
	t.users.Store(1)
	return t
}

// release ends the use of one operation.
func (t *slotUse) release() {
	if t.users.Add(-1) == 0 {
		<-t.slot.taken
	}
}

// await waits for p or ctx, and reports whether p has ended. An operation that yields lets others in between meanwhile.
func (c *Client) await(ctx context.Context, t *slotUse, p *pending) (ended bool) {
	var offer chan *slotUse
	if p.info.yields && !p.suspect { // One that may crash the worker is alone.
		c.mu.Lock()
		t.first = p
		c.mu.Unlock()
		t.users.Add(1) // of the next one that is let in
		defer t.release()
		offer = t.slot.offer
	}
	for {
		select {
		case <-p.done:
			return true
		case <-ctx.Done():
			return false
		case offer <- t:
			t.users.Add(1)
		}
	}
}

// lengthenLocked gives the operation that let p in between the time that p took. The client's mu is held.
func (t *slotUse) lengthenLocked(p *pending) {
	if t.first != nil && t.first != p {
		t.first.deadline.left += p.reply.Duration
	}
}
