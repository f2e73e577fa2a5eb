package lease

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// PendingInstance is an instance that a request waits for: it fits by making one. It is nobody else's, neither while it is made
// nor before the request has had it.
type PendingInstance struct {
	Ticket string
	GPU    gpu.UUID
	InstanceSlot
}

// avoidFor is how long a request does not try a GPU again on which no instance could be made for it.
const avoidFor = 30 * time.Second

// TakePendingInstances gives the instances that are to be made now. Whoever takes them makes them, or says with FinishPendingInstances that
// they were not; until then their rooms are their requests'.
func (t *Table) TakePendingInstances() []PendingInstance {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []PendingInstance
	for _, k := range t.queue {
		if k.pending != nil && !k.creating {
			k.creating = true
			out = append(out, *k.pending)
		}
	}
	return out
}

// HasPendingInstances tells whether there are instances to be made.
func (t *Table) HasPendingInstances() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.queue, func(k *Ticket) bool { return k.pending != nil && !k.creating })
}

// FinishPendingInstances says of instances that were taken that their making is over, after Update has told of what there is now.
// failed names the GPUs on which it failed: a request whose instance was to be there looks elsewhere.
func (t *Table) FinishPendingInstances(list []PendingInstance, failed map[gpu.UUID]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.queue {
		if k.pending == nil || !k.creating || !slices.Contains(list, *k.pending) {
			continue
		}
		if failed[k.pending.GPU] {
			if k.avoided == nil {
				k.avoided = map[gpu.UUID]time.Time{}
			}
			k.avoided[k.pending.GPU] = t.cfg.Now().Add(avoidFor)
		}
		k.pending, k.creating = nil, false
	}
	t.evaluateLocked()
}

// UnusedInstances lists, of the GPUs that make instances on demand and take leases now, the instances that nobody has, waits
// for or has reserved.
func (t *Table) UnusedInstances() map[gpu.UUID][]gpu.Placement {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[gpu.UUID][]gpu.Placement{}
	o := t.occupancyLocked()
	for _, k := range t.queue {
		if k.pending != nil {
			o.claim(k.pending)
		}
	}
	for i := range t.view.GPUs {
		d := &t.view.GPUs[i]
		if d.DynamicProfiles == nil {
			continue
		}
		for j := range d.Instances {
			in := &d.Instances[j]
			if !in.Pinned && o.at(d.UUID).free(in.Placement, Key{}, "") {
				out[d.UUID] = append(out[d.UUID], in.Placement)
			}
		}
	}
	return out
}

// claimPendingLocked keeps the rooms in which instances are being made, and forgets those where nobody has begun.
func (t *Table) claimPendingLocked(o *occupancy) {
	for _, k := range t.queue {
		if k.pending == nil {
			continue
		}
		if k.creating {
			o.claim(k.pending)
		} else {
			k.pending = nil // Nobody has begun: it is thought over, somebody before it may need the room.
		}
	}
}

func (o *occupancy) claim(m *PendingInstance) {
	t := o.at(m.GPU)
	t.claims = append(t.claims, slotClaim{m.InstanceSlot, m.Ticket})
}

// planInstanceLocked finds room to make an instance for a ticket that no idle one is there for. Without room it claims what it
// should get next.
func (k *Ticket) planInstanceLocked(o *occupancy, creatable []int) {
	now := k.t.cfg.Now()
	avoid := func(id gpu.UUID) bool { return now.Before(k.avoided[id]) }
	for _, i := range creatable {
		g := &k.candidates[i]
		if d, r := o.findSlot(g, &k.t.view, k.id, avoid); d != nil {
			k.pending, k.claimed = &PendingInstance{Ticket: k.id, GPU: d.UUID, InstanceSlot: r}, nil
			o.claim(k.pending)
			return
		}
	}
	for _, i := range creatable {
		if m := o.claimNext(&k.candidates[i], &k.t.view, k.id, k.claimed); m != nil {
			k.claimed = m
			o.claim(m)
			return
		}
	}
	k.claimed = nil
}

// pendingText says what is made for a ticket.
func (k *Ticket) pendingText() string {
	index := -1
	if d := k.t.view.gpu(k.pending.GPU); d != nil {
		index = d.Index
	}
	return fmt.Sprintf("%s is made for it on GPU %d", k.pending.Name, index)
}

// refuseLocked ends a ticket of somebody who does not wait, and was kept only because something was being made.
func (k *Ticket) refuseLocked() {
	k.failLocked(&api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot place a lease of %s now: %s", k.tenant, k.waiting), Hint: "wait for a place with --wait"})
	k.reportEndedLocked()
}
