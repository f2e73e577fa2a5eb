package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/text"
)

// Preemption is a request that waits, and the leases that are to be stopped to free a place for it.
type Preemption struct {
	Request Lease // as it is in the queue
	Victims []Lease
}

// preemption is the leases that are stopped for a ticket, and what their end frees.
type preemption struct {
	victims []*entry
	grant   Key          // of the request
	memory  uint64       // that the user of the request will have in addition, in bytes
	grants  map[Key]bool // of the victims
	gpus    []gpu.UUID
	slot    *PendingInstance // mig
	freed   time.Time        // when the last of them had ended
}

// freedFor is how long what was freed stays claimed for the request. An instance may be observed as in use for a moment,
// and another may have to be created in its place.
const freedFor = 30 * time.Second

// maxPreemptions is how often leases are stopped for one request. If another request gets the place each time, or the
// place is not free in the end, the request waits on.
const maxPreemptions = 3

// TakePreemptions returns the leases that are to be stopped now. The caller stops each of them if Preempts still
// returns true for it.
func (t *Table) TakePreemptions() []Preemption {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Preemption
	for _, k := range t.queue {
		if k.state != ticketChosen {
			continue
		}
		k.moveLocked(ticketPreempting)
		k.preemptions++
		p := Preemption{Request: k.lease.clone()}
		for _, e := range k.preempt.victims {
			if e.State == Running && !e.preempted { // One lease may have two GPUs, for two requests.
				e.preempted = true
				p.Victims = append(p.Victims, e.clone())
			}
		}
		if len(p.Victims) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// Preempts reports whether a request still waits for the end of the lease, and the lease may still be stopped for it. If
// not, another request may choose it again.
func (t *Table) Preempts(victim string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	requested := slices.ContainsFunc(t.queue, func(k *Ticket) bool {
		return k.preempt != nil && slices.ContainsFunc(k.preempt.victims, func(e *entry) bool {
			return e.ID == victim && t.leases[victim] == e && e.State == Running && k.mayStop(e)
		})
	})
	if e := t.leases[victim]; e != nil && !requested {
		e.preempted = false
	}
	return requested
}

// mayStop reports whether a lease may be stopped to free a place for the ticket, or is ending already: its tenant allows it
// and has a lower priority, and its end frees its place. A lease in place does not end with its processes on the GPU.
func (k *Ticket) mayStop(e *entry) bool {
	return (e.State == Running && !e.busy || e.State == Ending) && !e.InPlace() && e.Terms.Preempt == api.PreemptStop &&
		e.Terms.rank() < k.rank()
}

// preemptLocked chooses the leases that free a place for a ticket which has no place, or keeps the choice while they are
// being stopped. It claims what their end frees. ok is false if no lease is stopped for it.
func (k *Ticket) preemptLocked(o *occupancy, who requester) (waiting string, ok bool) {
	t := k.t
	if p := k.preempt; k.state == ticketPreempting {
		p.victims = slices.DeleteFunc(p.victims, func(e *entry) bool { return t.leases[e.ID] != e })
		now := t.cfg.Now()
		if len(p.victims) == 0 && p.freed.IsZero() {
			p.freed = now
		}
		if len(p.victims) == 0 && now.Sub(p.freed) >= freedFor {
			k.moveLocked(ticketWaiting) // The place is not free: an earlier request has it, or it was closed.
		}
	}
	if k.preempt == nil && k.request.Wait != nil && !k.request.Immediate && k.preemptions < maxPreemptions {
		k.preempt = k.chooseVictimsLocked(o, who)
	}
	if k.preempt == nil {
		return "", false
	}
	count := text.Count(max(stopCount(k.preempt.victims), 1), "lease")
	switch {
	case stopCount(k.preempt.victims) == 0:
		k.moveLocked(ticketPreempting) // All of them are ending: none is stopped.
	case t.view.Observing:
		k.moveLocked(ticketWaiting)
		return "it would be placed after " + count + " of a lower priority, which the spec allows to stop (preempt: stop), but the node only observes", false
	case k.state == ticketWaiting:
		k.moveLocked(ticketChosen)
	}
	k.preempt.claim(o, o.user(k.request.UID))
	if len(k.preempt.victims) == 0 {
		return "waits for the place that was freed for it", true
	}
	return "waits for " + count + " of a lower priority to end: preempted", true
}

// claim keeps what is freed from later requests, and counts the lease that will have it. Further leases of the victims'
// grants would keep it in use.
func (p *preemption) claim(o *occupancy, user *userUsage) {
	o.live[p.grant]++
	user.pending++
	user.memory += p.memory
	if p.slot != nil {
		o.claim(p.slot)
		return
	}
	for _, id := range p.gpus {
		u := o.at(id)
		u.claim(time.Time{})
		if u.preempted == nil {
			u.preempted = map[Key]bool{}
		}
		for key := range p.grants {
			u.preempted[key] = true
		}
	}
}

// chooseVictimsLocked returns the fewest leases whose end frees a place for the ticket; of equals those with the lowest
// priority, then the youngest. nil if there are none.
func (k *Ticket) chooseVictimsLocked(o *occupancy, who requester) *preemption {
	var all []*entry
	for _, e := range k.t.leases {
		if k.mayStop(e) {
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.Generation, b.Generation) })
	var best *preemption
	for i := range k.candidates {
		g := &k.candidates[i]
		if most := g.MaxLeases(); most > 0 && o.live[g.Key()] >= most {
			continue // Its own leases are in the way.
		}
		if tried, ok := o.unfreeable[g.Key()]; ok && tried >= k.rank() {
			continue
		}
		found := k.placesFor(g, all, o, who)
		if len(found) == 0 && who.has == nil && g.Only == nil &&
			g.Placer == "" { // What limits only this user or request is no reason for others.
			o.unfreeable[g.Key()] = k.rank()
		}
		for _, p := range found {
			if best == nil || compareVictims(p.victims, best.victims) < 0 {
				best = p
			}
		}
	}
	if best != nil {
		best.grants = map[Key]bool{}
		for _, e := range best.victims {
			best.grants[e.Terms.Key()] = true
		}
	}
	return best
}

// stopCount counts the leases that are not ending already.
func stopCount(list []*entry) (n int) {
	for _, e := range list {
		if e.State == Running {
			n++
		}
	}
	return n
}

// compareVictims orders sets of leases: fewer to stop first, then lower priorities, then younger leases.
func compareVictims(a, b []*entry) int {
	if c := cmp.Or(cmp.Compare(stopCount(a), stopCount(b)), cmp.Compare(len(a), len(b))); c != 0 {
		return c
	}
	first := func(list []*entry) (rank int, oldest []uint64) {
		for _, e := range list {
			rank += e.Terms.rank()
			oldest = append(oldest, e.Generation)
		}
		slices.Sort(oldest)
		return rank, oldest
	}
	rankA, oldestA := first(a)
	rankB, oldestB := first(b)
	return cmp.Or(cmp.Compare(rankA, rankB), slices.Compare(oldestB, oldestA))
}

// placesFor returns for each GPU, or for several whole GPUs together, the best leases whose end frees a place for the grant.
func (k *Ticket) placesFor(g *Grant, all []*entry, o *occupancy, who requester) (out []*preemption) {
	try := func(v *View, on []gpu.UUID, units [][]*entry) {
		find := func(ended []*entry) *preemption { return k.t.placeWithout(ended, g, v, on, o, who) }
		if p := fewest(units, find); p != nil {
			p.grant = g.Key()
			out = append(out, p)
		}
	}
	if g.Kind() == api.ModeExclusive {
		var units [][]*entry
		var on []gpu.UUID
		for _, e := range all {
			if e.Terms.Kind() == api.ModeExclusive {
				units = append(units, []*entry{e})
				on = append(on, e.Place.GPUs...)
			}
		}
		// Those that free most GPUs first, so that the search of fewest finds them early.
		usable := func(unit []*entry) (n int) {
			for _, id := range unit[0].Place.GPUs {
				if d := k.t.view.gpu(id); d != nil && g.mayUse(d) && d.Closed == "" {
					n++
				}
			}
			return n
		}
		slices.SortStableFunc(units, func(a, b []*entry) int { return cmp.Or(cmp.Compare(usable(b), usable(a)), compareVictims(a, b)) })
		try(&k.t.view, on, units)
		return out
	}
	for d := range g.open(&k.t.view, nil) {
		if o.at(d.UUID).preempted != nil {
			continue // What an earlier request is about to get is not counted twice.
		}
		v := k.t.view
		v.GPUs = []GPUView{*d}
		try(&v, []gpu.UUID{d.UUID}, unitsOn(d.UUID, k.t.leases, all))
	}
	return out
}

// unitsOn lists what can be freed on one GPU, each with the leases that have to end for it: an instance, or the share of
// a grant, which is free when its last lease there has ended.
func unitsOn(id gpu.UUID, live map[string]*entry, all []*entry) (units [][]*entry) {
	byGrant := map[Key]int{}
	for _, e := range all {
		if !slices.Contains(e.Place.GPUs, id) {
			continue
		}
		if i, ok := byGrant[e.Terms.Key()]; ok && e.Place.Instance == nil {
			units[i] = append(units[i], e)
			continue
		}
		byGrant[e.Terms.Key()] = len(units)
		units = append(units, []*entry{e})
	}
	units = slices.DeleteFunc(units, func(unit []*entry) bool { // A lease that may not be stopped keeps the share in use.
		keeps := 0
		for _, e := range live {
			if e.Terms.Key() == unit[0].Terms.Key() && slices.Contains(e.Place.GPUs, id) {
				keeps++
			}
		}
		return unit[0].Place.Instance == nil && keeps > len(unit)
	})
	slices.SortStableFunc(units, compareVictims)
	return units
}

// maxUnits bounds the search of fewest: it tries every set of this many units.
const maxUnits = 10

// fewest returns the smallest set of units that frees a place. With more than maxUnits it may be larger than that.
func fewest(units [][]*entry, find func([]*entry) *preemption) *preemption {
	if len(units) == 0 {
		return nil
	}
	found := find(slices.Concat(units...))
	if found == nil {
		return nil
	}
	for i := len(units) - 1; i >= 0 && len(units) > maxUnits; i-- { // Leave out what is not needed, the largest first.
		without := slices.Concat(units[:i], units[i+1:])
		if p := find(slices.Concat(without...)); p != nil {
			units, found = without, p
		}
	}
	if len(units) > maxUnits {
		return found
	}
	sets := make([][]*entry, 0, 1<<len(units))
	for mask := 1; mask < 1<<len(units); mask++ {
		var set []*entry
		for i := range units {
			if mask&(1<<i) != 0 {
				set = append(set, units[i]...)
			}
		}
		sets = append(sets, set)
	}
	slices.SortStableFunc(sets, compareVictims)
	for _, set := range sets {
		if p := find(set); p != nil {
			return p
		}
	}
	return found
}

// placeWithout returns where the grant would be placed on the GPUs of the view if the leases had ended; nil if nowhere.
// on has the GPUs of the leases.
func (t *Table) placeWithout(ended []*entry, g *Grant, v *View, on []gpu.UUID, o *occupancy, who requester) *preemption {
	free := t.view
	free.GPUs = slices.Clone(t.view.GPUs)
	for _, e := range ended {
		if i := t.view.index(e.Place.GPUs[0]); i < len(free.GPUs) && e.Place.Instance != nil {
			free.GPUs[i].Instances = unpinned(free.GPUs[i].Instances, *e.Place.Instance)
		}
		free.withoutMemoryOf(e)
	}
	left, places := newOccupancy(), map[Key][]Place{}
	left.capacity, left.memoryUse = o.capacity, o.memoryUse
	for _, e := range t.leases {
		near := len(t.unmet) > 0 || slices.ContainsFunc(e.Place.GPUs, func(id gpu.UUID) bool { return slices.Contains(on, id) })
		if near && !slices.Contains(ended, e) {
			t.addLeaseLocked(left, e) // With what it has for itself: the end of other grants' leases does not free that.
			places[e.Terms.Key()] = append(places[e.Terms.Key()], e.Place)
		}
	}
	if len(t.unmet) > 0 { // A reserved grant without its place takes what is freed before any request.
		reserve(&free, left, t.reserved, places)
	} else {
		t.addReservedLocked(left, func(*Grant) bool { return true })
	}
	for id, u := range o.gpus {
		if !slices.Contains(on, id) {
			left.gpus[id] = u
			continue
		}
		of := left.at(id)
		of.claims, of.claimed, of.start, of.preempted = u.claims, u.claimed, u.start, u.preempted
	}
	left.live, left.users, left.noCapacity = o.live, o.users, map[Key]bool{}
	free.GPUs = slices.DeleteFunc(free.GPUs, func(d GPUView) bool { return v.gpu(d.UUID) == nil })
	p, ob := placeFor(g, &free, left, who)
	switch {
	case p != nil && g.share() != nil:
		return &preemption{victims: ended, memory: who.more(g, p), gpus: p.GPUs}
	case p != nil && p.Instance != nil:
		return &preemption{
			victims: ended,
			memory:  p.Memory,
			slot: &PendingInstance{
				Ticket:       who.ticket,
				GPU:          p.GPUs[0],
				InstanceSlot: InstanceSlot{Name: p.Profile, Placement: *p.Instance, Compute: p.Compute},
			},
		}
	case p != nil:
		return &preemption{victims: ended, memory: placeMemory(p, v), gpus: p.GPUs}
	case ob.canCreate:
		if d, r := left.findSlot(g, &free, who, nil); d != nil {
			memory := uint64(0)
			if i := slices.IndexFunc(d.Profiles, func(q ProfileView) bool { return q.slotName() == r.Name }); i >= 0 {
				memory = d.Profiles[i].Memory
			}
			return &preemption{victims: ended, memory: memory, slot: &PendingInstance{Ticket: who.ticket, GPU: d.UUID, InstanceSlot: r}}
		}
	}
	return nil
}

// unpinned returns the instances with one that is not in use. It is pinned while processes of its lease use it, which end
// with the lease; if there are others, the request waits on.
func unpinned(list []InstanceView, at gpu.Placement) []InstanceView {
	list = slices.Clone(list)
	for i := range list {
		if in := &list[i]; in.Placement == at && in.Unusable == "" {
			in.Pinned, in.InUse = false, false
		}
	}
	return list
}
