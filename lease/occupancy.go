package lease

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// occupancy is what is in use of each GPU. It is built for one evaluation of the queue.
type occupancy struct {
	gpus       map[gpu.UUID]*gpuUsage
	live       map[Key]int                          // leases that have a place
	users      map[int]*userUsage                   // by uid
	capacity   CapacityFinder                       // nil: no instance is created on demand
	noCapacity map[Key]bool                         // grants without capacity: within one evaluation capacity only decreases
	memoryUse  func(id string, on gpu.UUID) *uint64 // as of Config
	backfill   backfill
	unfreeable map[Key]int // grants for which no leases can be stopped, with the highest priority that was tried
}

// gpuUsage is what is in use of one GPU.
type gpuUsage struct {
	exclusive *occupant                   // exclusive
	instances map[gpu.Placement]*occupant // mig
	shares    map[Key]*grantShare         // timeslice and mps
	shared    map[gpu.Placement]*gpuUsage // mig: of instances that are shared through MPS
	claims    []slotClaim                 // mig: of requests whose instances do not exist yet
	claimed   bool                        // an earlier request waits for this GPU
	start     time.Time                   // when the earliest of these requests starts at the latest; zero: that is not known
	clients   int                         // of its MPS server that leases have or may have
	user      *int                        // uid of a user who has a lease on it; nil if no user has
	preempted map[Key]bool                // grants whose leases here are stopped for that request
}

// occupant is the grant that has a place: by a lease, by reservation, or both.
type occupant struct {
	live     *Key
	reserved *Key
	parts    map[gpu.UUID]*occupant // of an instance that is split, by the MIG device of the compute instance
}

// freeFor reports whether the grant may have the place now, with all its parts.
func (h *occupant) freeFor(k Key) bool {
	if h == nil {
		return true
	}
	for _, p := range h.parts {
		if !p.freeFor(k) {
			return false
		}
	}
	return h.live == nil && (h.reserved == nil || *h.reserved == k)
}

// at returns a copy of what is in use of one compute instance, or of the whole instance with all its parts.
func (h *occupant) at(device gpu.UUID) *occupant {
	if h == nil || device == "" {
		return h
	}
	out := occupant{live: h.live, reserved: h.reserved}
	if p := h.parts[device]; p != nil {
		out.live, out.reserved = cmp.Or(p.live, out.live), cmp.Or(p.reserved, out.reserved)
	}
	return &out
}

// inUse reports whether leases have the place or parts of it.
func (h *occupant) inUse() bool {
	if h == nil || h.live != nil {
		return h != nil
	}
	for _, p := range h.parts {
		if p.live != nil {
			return true
		}
	}
	return false
}

// reservedForOther reports whether the place, or a part of it, is reserved for another grant.
func (h *occupant) reservedForOther(k Key) bool {
	for _, p := range h.parts {
		if p.reservedForOther(k) {
			return true
		}
	}
	return h.reserved != nil && *h.reserved != k
}

// part returns what is in use of one compute instance, to be changed.
func (h *occupant) part(device gpu.UUID) *occupant {
	if h.parts == nil {
		h.parts = map[gpu.UUID]*occupant{}
	}
	p := h.parts[device]
	if p == nil {
		p = &occupant{}
		h.parts[device] = p
	}
	return p
}

// grantShare is what one grant has of a shared GPU.
type grantShare struct {
	memory uint64 // the largest of its leases' terms and its reservation
	share  float64
	// lowLatency is its share if it has latency: low, otherwise 0.
	lowLatency float64
	leases     int
	own        ownUse // of its leases
	reserved   bool
	until      time.Time // when the last of its leases ends
	endless    bool      // that is not known of one of them
}

func newOccupancy() *occupancy {
	return &occupancy{
		gpus:       map[gpu.UUID]*gpuUsage{},
		live:       map[Key]int{},
		users:      map[int]*userUsage{},
		noCapacity: map[Key]bool{},
		unfreeable: map[Key]int{},
	}
}

func (o *occupancy) at(id gpu.UUID) *gpuUsage {
	t := o.gpus[id]
	if t == nil {
		t = &gpuUsage{instances: map[gpu.Placement]*occupant{}, shares: map[Key]*grantShare{}}
		o.gpus[id] = t
	}
	return t
}

// add records the place as used by a lease of the grant, or by its reservation.
func (o *occupancy) add(g *Grant, p *Place, reserved bool) {
	key := g.Key()
	occupy := func(h *occupant) *occupant {
		if h == nil {
			h = &occupant{}
		}
		if reserved {
			h.reserved = &key
		} else {
			h.live = &key
		}
		return h
	}
	for _, id := range p.GPUs {
		t := o.at(id)
		switch {
		case g.share() != nil:
			t = o.shared(p, id)
			s := t.shares[key]
			if s == nil {
				s = &grantShare{}
				t.shares[key] = s
			}
			s.memory, s.share = max(s.memory, g.memory()), max(s.share, g.percent())
			s.lowLatency = max(s.lowLatency, g.lowLatency())
			if reserved {
				s.reserved = true
			} else {
				s.leases++
			}
		case p.Instance != nil && p.Compute != "":
			h := t.instances[*p.Instance]
			if h == nil {
				h = &occupant{}
				t.instances[*p.Instance] = h
			}
			occupy(h.part(p.Compute))
		case p.Instance != nil:
			t.instances[*p.Instance] = occupy(t.instances[*p.Instance])
		case g.Kind() == api.ModeExclusive:
			t.exclusive = occupy(t.exclusive)
		}
	}
	if !reserved {
		o.live[key]++
	}
}

// memoryUsed is how much memory of a GPU a lease uses, in bytes; nil: it is not known.
func (o *occupancy) memoryUsed(id string, on gpu.UUID) *uint64 {
	if o.memoryUse == nil {
		return nil
	}
	return o.memoryUse(id, on)
}

// granted sums the shares of all grants but one; reservedOnly leaves out grants that are not reserved.
func (t *gpuUsage) granted(but Key, reservedOnly bool) (memory uint64, share float64) {
	for k, s := range t.shares {
		if k != but && (s.reserved || !reservedOnly) {
			memory += s.memory
			share += s.share
		}
	}
	return memory, share
}

// liveLocked returns what the leases use.
func (t *Table) liveLocked() *occupancy {
	o := newOccupancy()
	o.capacity, o.memoryUse = t.cfg.Capacity, t.cfg.MemoryUse
	for _, e := range t.leases {
		t.addLeaseLocked(o, e)
	}
	return o
}

// Granted returns the memory that live and reserved grants have on each shared GPU, sorted by tenant and grant.
func (t *Table) Granted() map[gpu.UUID][]api.GrantedMemory {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[gpu.UUID][]api.GrantedMemory{}
	o := t.liveLocked()
	t.addReservedLocked(o, func(*Grant) bool { return true })
	for id, taken := range o.gpus {
		sum := map[Key]uint64{}
		for _, u := range append(slices.Collect(maps.Values(taken.shared)), taken) {
			for k, p := range u.shares {
				sum[k] += p.memory
			}
		}
		for k, bytes := range sum {
			out[id] = append(out[id], api.GrantedMemory{Tenant: k.Tenant, Grant: k.Grant, Bytes: bytes})
		}
		slices.SortFunc(out[id], func(a, b api.GrantedMemory) int {
			return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Grant, b.Grant))
		})
	}
	return out
}

// addLeaseLocked records what a lease uses, and until when.
func (t *Table) addLeaseLocked(o *occupancy, e *entry) {
	o.add(&e.Terms, &e.Place, false)
	o.addUser(e.UID, &e.Terms, &e.Place, &t.view)
	o.joins(e.ID, &e.Place, &t.view)
	if e.Terms.share() == nil {
		return
	}
	end := t.knownEndLocked(e)
	for _, id := range e.Place.GPUs {
		s := o.shared(&e.Place, id).shares[e.Terms.Key()]
		s.own.add(e.Own)
		if e.Own.Memory == 0 && (e.State != Placed || e.Process != (Process{})) {
			s.own.others = append(s.own.others, e.ID)
		}
		s.endless = s.endless || end.IsZero()
		if end.After(s.until) {
			s.until = end
		}
	}
}
