package lease

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// Making is an instance that a request waits for: it fits by making one. It is nobody else's, neither while it is made
// nor before the request has had it.
type Making struct {
	Ticket string
	GPU    gpu.UUID
	Room
}

// shunFor is how long a request does not try a GPU again on which no instance could be made for it.
const shunFor = 30 * time.Second

// TakeMakings gives the instances that are to be made now. Whoever takes them makes them, or says with EndMakings that
// they were not; until then their rooms are their requests'.
func (t *Table) TakeMakings() []Making {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Making
	for _, k := range t.queue {
		if k.making != nil && !k.begun {
			k.begun = true
			out = append(out, *k.making)
		}
	}
	return out
}

// Wants tells whether there are instances to be made.
func (t *Table) Wants() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.queue, func(k *Ticket) bool { return k.making != nil && !k.begun })
}

// EndMakings says of instances that were taken that their making is over, after Update has told of what there is now.
// failed names the GPUs on which it failed: a request whose instance was to be there looks elsewhere.
func (t *Table) EndMakings(list []Making, failed map[gpu.UUID]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.queue {
		if k.making == nil || !k.begun || !slices.Contains(list, *k.making) {
			continue
		}
		if failed[k.making.GPU] {
			if k.shunned == nil {
				k.shunned = map[gpu.UUID]time.Time{}
			}
			k.shunned[k.making.GPU] = t.cfg.Now().Add(shunFor)
		}
		k.making, k.begun = nil, false
	}
	t.evaluateLocked()
}

// Unneeded lists, of the GPUs that make instances on demand and take leases now, the instances that nobody has, waits
// for or has reserved.
func (t *Table) Unneeded() map[gpu.UUID][]gpu.Placement {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[gpu.UUID][]gpu.Placement{}
	o := t.occupancyLocked()
	for _, k := range t.queue {
		if k.making != nil {
			o.claim(k.making)
		}
	}
	for i := range t.view.GPUs {
		d := &t.view.GPUs[i]
		if d.Grid == nil {
			continue
		}
		for j := range d.Instances {
			in := &d.Instances[j]
			if !in.Stays && o.at(d.UUID).free(in.Placement, Key{}, "") {
				out[d.UUID] = append(out[d.UUID], in.Placement)
			}
		}
	}
	return out
}

// claimBegunLocked keeps the rooms in which instances are being made, and forgets those where nobody has begun.
func (t *Table) claimBegunLocked(o *occupancy) {
	for _, k := range t.queue {
		if k.making == nil {
			continue
		}
		if k.begun {
			o.claim(k.making)
		} else {
			k.making = nil // Nobody has begun: it is thought over, somebody before it may need the room.
		}
	}
}

func (o *occupancy) claim(m *Making) {
	t := o.at(m.GPU)
	t.claims = append(t.claims, claim{m.Room, m.Ticket})
}

// makeLocked finds room to make an instance for a ticket that no idle one is there for. Without room it claims what it
// should get next.
func (k *Ticket) makeLocked(o *occupancy, wanting []int) {
	now := k.t.cfg.Now()
	not := func(id gpu.UUID) bool { return now.Before(k.shunned[id]) }
	for _, i := range wanting {
		g := &k.candidates[i]
		if d, r := o.room(g, &k.t.view, k.id, not); d != nil {
			k.making, k.kept = &Making{Ticket: k.id, GPU: d.UUID, Room: r}, nil
			o.claim(k.making)
			return
		}
	}
	for _, i := range wanting {
		if m := o.keep(&k.candidates[i], &k.t.view, k.id, k.kept); m != nil {
			k.kept = m
			o.claim(m)
			return
		}
	}
	k.kept = nil
}

// makingText says what is made for a ticket.
func (k *Ticket) makingText() string {
	index := -1
	if d := k.t.view.gpu(k.making.GPU); d != nil {
		index = d.Index
	}
	return fmt.Sprintf("%s is made for it on GPU %d", k.making.Name, index)
}

// refuseLocked ends a ticket of somebody who does not wait, and was kept only because something was being made.
func (k *Ticket) refuseLocked() {
	k.failLocked(&api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot place a lease of %s now: %s", k.tenant, k.waiting), Hint: "wait for a place with --wait"})
	k.goneLocked()
}
