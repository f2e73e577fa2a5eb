package lease

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/text"
)

// Place is where a lease is: one or more GPUs, one instance of one GPU, or a share of one GPU.
type Place struct {
	GPUs     []gpu.UUID     `json:"gpus"`
	Instance *gpu.Placement `json:"instance,omitempty"`   // of a MIG lease
	Profile  string         `json:"profile,omitempty"`    // of that instance
	Memory   uint64         `json:"gpu_memory,omitempty"` // of that instance, in bytes
	// Generation is gpushare's number of the instance: an instance that is created again at the same placement has the
	// same UUIDs.
	Generation uint64 `json:"generation,omitempty"`
	// Compute is the MIG device of the one compute instance that it has of an instance that is split; empty: it has all of
	// the instance.
	Compute gpu.UUID `json:"compute,omitempty"`
	// Devices is what the lease's processes may use: GPU UUIDs, or the MIG UUIDs of the instance.
	Devices []gpu.UUID `json:"devices"`
}

// same reports whether two places are equal.
func (p *Place) same(q *Place) bool {
	if (p.Instance == nil) != (q.Instance == nil) || p.Instance != nil && *p.Instance != *q.Instance {
		return false
	}
	return p.Compute == q.Compute && slices.Equal(p.GPUs, q.GPUs)
}

// occupancy is what is in use of each GPU. It is built for one evaluation of the queue.
type occupancy struct {
	gpus       map[gpu.UUID]*gpuUsage
	live       map[Key]int        // leases that have a place
	users      map[int]*userUsage // by uid
	capacity   CapacityFinder     // nil: no instance is created on demand
	noCapacity map[Key]bool       // grants without capacity: within one evaluation capacity only decreases
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

// obstacle is why a grant has no place now.
type obstacle struct {
	text       string
	claims     []gpu.UUID // what it should get next
	canCreate  bool       // an instance might be created for it
	mayFitSoon bool       // an instance that is being created may be for it: it is not refused yet
}

// place finds the best place for one more lease of the grant, or says why there is none now.
func place(g *Grant, v *View, o *occupancy) (*Place, *obstacle) {
	return placeFor(g, v, o, requester{})
}

// placeFor is place for a requester.
func placeFor(g *Grant, v *View, o *occupancy, who requester) (*Place, *obstacle) {
	if v.DriverUnavailable != "" {
		return nil, &obstacle{text: "the GPUs cannot be read now: " + v.DriverUnavailable}
	}
	if most := g.MaxLeases(); most > 0 && o.live[g.Key()] >= most {
		if most == 1 {
			return nil, &obstacle{text: "its one lease is in use"}
		}
		return nil, &obstacle{text: fmt.Sprintf("all its %d leases are in use", most)}
	}
	switch g.Kind() {
	case api.ModeMIG:
		return placeInstance(g, v, o, who)
	case api.ModeExclusive:
		return placeExclusive(g, v, o, who)
	}
	return placeShare(g, v, o, who)
}

// placeExclusive chooses idle GPUs, those reserved for the grant first, then in the driver's order.
func placeExclusive(g *Grant, v *View, o *occupancy, who requester) (*Place, *obstacle) {
	var own, idle, lent, claims []gpu.UUID
	var closed closedPlaces
	open, claimed := 0, 0
	for d := range g.open(v, &closed) {
		t := o.at(d.UUID)
		if why := cmp.Or(d.Occupied, t.exclusive.memoryInNoProcess(d.InNoProcess)); why != "" && !who.inPlace {
			closed.say(d.name(), why)
			continue
		}
		reservedForGrant := t.exclusive != nil && t.exclusive.reserved != nil && *t.exclusive.reserved == g.Key()
		if reservedForGrant || t.exclusive == nil || t.exclusive.reserved == nil {
			open++
		}
		switch {
		case !t.exclusive.freeFor(g.Key()):
		case reservedForGrant:
			own = append(own, d.UUID)
		case t.claimedBefore(&who):
			claimed++
		case t.claimed:
			lent = append(lent, d.UUID)
		default:
			idle = append(idle, d.UUID)
			claims = append(claims, d.UUID)
		}
	}
	n := g.Spec.Exclusive
	if have := slices.Concat(own, idle, lent); len(have) >= n {
		return takeExclusive(have, n, v, who)
	}
	ob := &obstacle{text: fmt.Sprintf("%d exclusive %s requested, %d idle", n, text.Plural(n, "GPU"), len(own)+len(idle)+len(lent))}
	if claimed > 0 {
		ob.text += fmt.Sprintf(" (%d more are claimed by an earlier request)", claimed)
	}
	if closed.any() {
		ob.text += "; " + closed.text()
	}
	if open >= n { // else only an administrator can free them: the request does not wait for that
		ob.claims = claims
	}
	return nil, ob
}

// takeExclusive takes n of the GPUs that a request may have, the first ones of them.
func takeExclusive(have []gpu.UUID, n int, v *View, who requester) (*Place, *obstacle) {
	if who.limit.Memory > 0 { // The smallest first: the user may not have larger ones.
		slices.SortStableFunc(have, func(a, b gpu.UUID) int { return cmp.Compare(v.gpu(a).Capacity, v.gpu(b).Capacity) })
	}
	got := have[:n]
	slices.SortFunc(got, func(a, b gpu.UUID) int { return cmp.Compare(v.index(a), v.index(b)) })
	p := &Place{GPUs: got, Devices: slices.Clone(got)}
	if memory := placeMemory(p, v); memory > who.left() {
		return nil, who.tooMuch(memory)
	}
	return p, nil
}

// fullShare is all of one GPU, in percent.
const fullShare = 100

// index returns a GPU's position in the view; a GPU that is not there comes last.
func (v *View) index(id gpu.UUID) int {
	if i := slices.IndexFunc(v.GPUs, func(d GPUView) bool { return d.UUID == id }); i >= 0 {
		return i
	}
	return len(v.GPUs)
}

// gpu returns a GPU of the view; nil if it is not there.
func (v *View) gpu(id gpu.UUID) *GPUView {
	if i := v.index(id); i < len(v.GPUs) {
		return &v.GPUs[i]
	}
	return nil
}

func percentText(f float64) string { return api.Percent(max(f, 0)).String() }
