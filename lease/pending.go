package lease

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// PendingInstance is an instance that is to be created for a request. No other request gets it, neither while it is
// created nor before the request has used it.
type PendingInstance struct {
	Ticket string
	GPU    gpu.UUID
	InstanceSlot
}

// creationTime is how long the creation of an instance may take: a request that is to end before an earlier one starts has
// only the rest of the time.
const creationTime = 2 * time.Minute

// avoidFor is how long a request avoids a GPU on which its instance could not be created.
const avoidFor = 30 * time.Second

// TakePendingInstances returns the instances that are to be created now. The caller creates them and then calls
// FinishPendingInstances; until then their capacity belongs to their requests.
func (t *Table) TakePendingInstances() []PendingInstance {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []PendingInstance
	for _, k := range t.queue {
		if k.state == ticketPlanned {
			k.moveLocked(ticketCreating)
			out = append(out, *k.pending)
		}
	}
	return out
}

// HasPendingInstances reports whether there are instances to create.
func (t *Table) HasPendingInstances() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.queue, func(k *Ticket) bool { return k.state == ticketPlanned })
}

// FinishPendingInstances ends the creation of instances, after Update was called with the new state. failed names the
// GPUs on which it failed: a request whose instance was planned there is placed elsewhere.
func (t *Table) FinishPendingInstances(list []PendingInstance, failed map[gpu.UUID]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.queue {
		if k.state != ticketCreating || !slices.Contains(list, *k.pending) {
			continue
		}
		if failed[k.pending.GPU] {
			if k.avoided == nil {
				k.avoided = map[gpu.UUID]time.Time{}
			}
			k.avoided[k.pending.GPU] = t.cfg.Now().Add(avoidFor)
		}
		k.moveLocked(k.withoutInstance())
	}
	t.evaluateLocked()
}

// UnusedInstances lists, on GPUs that create instances on demand and take leases now, the instances that no lease uses,
// no request waits for and no grant reserves.
func (t *Table) UnusedInstances() map[gpu.UUID][]gpu.Placement {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[gpu.UUID][]gpu.Placement{}
	o := t.occupancyLocked()
	for _, k := range t.queue {
		if k.pending != nil {
			o.claimPending(k)
		}
	}
	for i := range t.view.GPUs {
		d := &t.view.GPUs[i]
		if d.DynamicProfiles == nil {
			continue
		}
		for j := range d.Instances {
			in := &d.Instances[j]
			if !in.Pinned && o.at(d.UUID).free(in.Placement, "", Key{}, &requester{}) {
				out[d.UUID] = append(out[d.UUID], in.Placement)
			}
		}
	}
	return out
}

// claimPendingLocked claims the capacity of instances that are being created, and drops pending instances that the
// caller did not take.
func (t *Table) claimPendingLocked(o *occupancy) {
	for _, k := range t.queue {
		switch k.state {
		case ticketCreating:
			o.claimPending(k)
		case ticketPlanned:
			k.moveLocked(k.withoutInstance()) // Not started: it is planned again, because a request ahead may need the capacity.
		}
	}
}

// claimPending keeps what is created for a ticket, and counts the lease that its user will have.
func (o *occupancy) claimPending(k *Ticket) {
	t := o.at(k.pending.GPU)
	t.claims = append(t.claims, slotClaim{InstanceSlot: k.pending.InstanceSlot, ticket: k.id, pending: true})
	o.user(k.request.UID).pending++
}

func (o *occupancy) claim(m *PendingInstance) {
	o.claimUntil(m, time.Time{})
}

// claimUntil claims a slot for a request that starts at the latest at a time; zero: that is not known.
func (o *occupancy) claimUntil(m *PendingInstance, start time.Time) {
	t := o.at(m.GPU)
	t.claims = append(t.claims, slotClaim{InstanceSlot: m.InstanceSlot, ticket: m.Ticket, start: start})
	o.backfill.lends = o.backfill.lends || !start.IsZero()
}

// planInstanceLocked finds the capacity to create an instance for a ticket for which none is idle.
func (k *Ticket) planInstanceLocked(o *occupancy, who requester, creatable []int) {
	now := k.t.cfg.Now()
	avoid := func(id gpu.UUID) bool { return now.Before(k.avoided[id]) }
	for _, i := range creatable {
		g := &k.candidates[i]
		who.ends = k.endFrom(g, now.Add(creationTime))
		if d, r := o.findSlot(g, &k.t.view, who, avoid); d != nil {
			k.pending, k.claimed = &PendingInstance{Ticket: k.id, GPU: d.UUID, InstanceSlot: r}, nil
			k.ends = who.ends
			k.moveLocked(ticketPlanned)
			o.claimPending(k)
			o.backfill.read = false
			return
		}
	}
}

// claimInstanceLocked claims what a ticket without capacity should get next.
func (k *Ticket) claimInstanceLocked(o *occupancy, who requester, creatable []int) {
	for _, i := range creatable {
		if m := o.claimNext(&k.candidates[i], &k.t.view, who, k.claimed); m != nil {
			k.claimed = m
			o.claim(m)
			return
		}
	}
	k.claimed = nil
}

// pendingText describes the instance that is created for a ticket.
func (k *Ticket) pendingText() string {
	on := string(k.pending.GPU)
	if d := k.t.view.gpu(k.pending.GPU); d != nil {
		on = d.name()
	}
	return fmt.Sprintf("%s is being created for it on %s", k.pending.Name, on)
}
