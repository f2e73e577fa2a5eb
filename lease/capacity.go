package lease

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// CapacityFinder finds capacity for one more MIG instance on GPUs that create them on demand. It is called with the
// table's lock held: it computes, and neither blocks nor calls the table.
type CapacityFinder interface {
	// Find chooses where an instance of one of the profiles costs others least; it tries the profiles in order.
	// Instances in Taken stay, those in Idle may be removed. at is -1 if there is no capacity.
	Find(profiles []string, on []GPUCapacity) (at int, r InstanceSlot)
}

// GPUCapacity is one GPU with the slots that are taken and those that may be replaced.
type GPUCapacity struct {
	Profiles *gpu.Profiles
	Taken    []InstanceSlot
	Idle     []InstanceSlot
}

// InstanceSlot is one instance that exists or may be created: its profile and placement. Its name is that of its compute
// instances (1c.3g.20gb) if it is split into them.
type InstanceSlot struct {
	ProfileID uint32
	Name      string
	Placement gpu.Placement
	Compute   gpu.UUID // one compute instance of one that exists and is split; empty: all
}

// overlaps reports whether the slot has slices of a placement, or of one compute instance of the instance there.
func (s *InstanceSlot) overlaps(at gpu.Placement, device gpu.UUID) bool {
	other := s.Compute != "" && device != "" && s.Placement == at && s.Compute != device
	return s.Placement.Overlaps(at) && !other
}

// slotClaim is a slot that belongs to a request before its instance exists: it is being created, or kept until it can
// be.
type slotClaim struct {
	InstanceSlot
	ticket  string
	start   time.Time // when that request starts at the latest; zero: that is not known, or the instance is being created
	pending bool      // the instance is being created, or is to be
}

// blocks reports whether a request may not have what is claimed: it is not its own, and it does not end before.
func (c *slotClaim) blocks(who *requester) bool {
	return c.ticket != who.ticket && !who.endsBy(c.start)
}

// free reports whether a request of the grant may have a placement, or one compute instance of the instance there: no lease
// has it or a part of it, it is reserved for no other grant, and no other request claims it.
func (t *gpuUsage) free(at gpu.Placement, device gpu.UUID, k Key, who *requester) bool {
	for i := range t.claims {
		if c := &t.claims[i]; c.blocks(who) && c.overlaps(at, device) {
			return false
		}
	}
	for p, h := range t.instances {
		if p == at {
			h = h.at(device)
		}
		if p.Overlaps(at) && !h.freeFor(k) {
			return false
		}
	}
	for p, u := range t.shared {
		if p.Overlaps(at) && len(u.shares) > 0 {
			return false
		}
	}
	return true
}

// createdFor reports whether the instance at a placement was created for this request.
func (t *gpuUsage) createdFor(at gpu.Placement, ticket string) bool {
	return slices.ContainsFunc(t.claims, func(c slotClaim) bool { return c.ticket == ticket && ticket != "" && c.Placement == at })
}

// capacity returns the GPU's slots as a request of the grant may use them.
func (t *gpuUsage) capacity(d *GPUView, k Key, who *requester) GPUCapacity {
	out := GPUCapacity{Profiles: d.DynamicProfiles}
	there := map[gpu.Placement]bool{}
	for i := range d.Instances {
		in := &d.Instances[i]
		there[in.Placement] = true
		r := InstanceSlot{ProfileID: in.ProfileID, Name: in.Name, Placement: in.Placement}
		if len(in.Compute) > 0 {
			r.Name = in.Compute[0].Name
		}
		unfree := t.instances[in.Placement].memoryInNoProcess(in.InNoProcess) != "" // It would be chosen, and no request gets it.
		if in.Pinned || unfree || !t.free(in.Placement, "", k, who) {
			out.Taken = append(out.Taken, r)
		} else {
			out.Idle = append(out.Idle, r)
		}
	}
	for i := range t.claims {
		if c := &t.claims[i]; c.blocks(who) && !there[c.Placement] {
			there[c.Placement] = true
			out.Taken = append(out.Taken, c.InstanceSlot)
		}
	}
	// Reserved for another grant and not created yet, or used by a lease whose instance does not exist any more.
	for p, h := range t.instances {
		if !there[p] && !h.freeFor(k) {
			out.Taken = append(out.Taken, InstanceSlot{Placement: p, ProfileID: noProfile})
		}
	}
	slices.SortFunc(out.Taken, func(a, b InstanceSlot) int {
		return cmp.Or(cmp.Compare(a.Placement.Start, b.Placement.Start), cmp.Compare(a.Placement.Size, b.Placement.Size))
	})
	return out
}

// noProfile is an id that no device lists.
const noProfile = ^uint32(0)

// profiles names the profiles of these GPUs that satisfy the grant and have at most this memory, the smallest first.
func (g *Grant) profiles(on []*GPUView, most uint64) []string {
	var all []ProfileView
	for _, d := range on {
		for i := range d.Profiles {
			if d.Profiles[i].Memory <= most && g.matches(&d.Profiles[i]) && (d.Profiles[i].Split == "" || g.namesCompute()) {
				all = append(all, d.Profiles[i])
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ProfileView) int {
		return cmp.Or(
			cmp.Compare(a.Slices, b.Slices), cmp.Compare(a.Memory, b.Memory), cmp.Compare(len(a.Attributes), len(b.Attributes)),
			cmp.Compare(a.Name, b.Name),
		)
	})
	var names []string
	for i := range all {
		if name := all[i].slotName(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// createsInstances reports whether instances can be created on the GPU now.
func (v *GPUView) createsInstances() bool { return v.DynamicProfiles != nil && v.Closed == "" }

// findSlot returns where an instance for the grant could be created now. GPUs for which avoid is true are not tried.
func (o *occupancy) findSlot(g *Grant, v *View, who requester, avoid func(gpu.UUID) bool) (d *GPUView, r InstanceSlot) {
	if o.capacity == nil || o.noCapacity[g.Key()] && !o.backfill.mayLend(&who) {
		return nil, r
	}
	var where []*GPUView
	var on []GPUCapacity
	for i := range v.GPUs {
		if d := &v.GPUs[i]; g.mayUse(d) && d.createsInstances() && (avoid == nil || !avoid(d.UUID)) {
			where = append(where, d)
			on = append(on, o.at(d.UUID).capacity(d, g.Key(), &who))
		}
	}
	names := g.profiles(where, who.left())
	if len(names) == 0 {
		return nil, r
	}
	at, r := o.find(g, names, on)
	if at < 0 {
		// A probe for a reservation has no name. A request that avoids a GPU, whose GPUs are named, that may have what others claim, or
		// whose user may have only small instances, decides only for itself.
		if g.Spec.Name != "" && g.Only == nil && g.Placer == "" && who.limit.Memory == 0 && !o.backfill.mayLend(&who) &&
			(avoid == nil || !slices.ContainsFunc(v.GPUs, func(d GPUView) bool { return avoid(d.UUID) })) {
			o.noCapacity[g.Key()] = true
		}
		return nil, r
	}
	return where[at], r
}

// find chooses where an instance of one of the profiles is created: at the memory slice that an engine chose, or where it costs others
// least.
func (o *occupancy) find(g *Grant, names []string, on []GPUCapacity) (at int, r InstanceSlot) {
	if g.Chosen == nil {
		return o.capacity.Find(names, on)
	}
	for _, name := range names {
		chosen := make([]GPUCapacity, 0, len(on))
		for i := range on {
			chosen = append(chosen, on[i].beginningAt(g.Chosen.placement.Start, name))
		}
		if at, r = o.capacity.Find([]string{name}, chosen); at >= 0 && g.Chosen.allowsAt(r.Placement) {
			return at, r
		}
	}
	return -1, InstanceSlot{}
}

// beginningAt limits the slots to those that begin at a memory slice. Idle instances of the same name elsewhere stay: none of them is what
// is chosen.
func (c *GPUCapacity) beginningAt(start uint32, name string) GPUCapacity {
	elsewhere := func(at gpu.Placement) bool { return at.Start != start }
	profiles := *c.Profiles
	profiles.GI = slices.Clone(profiles.GI)
	for i := range profiles.GI {
		profiles.GI[i].Placements = slices.DeleteFunc(slices.Clone(profiles.GI[i].Placements), elsewhere)
	}
	out := GPUCapacity{Profiles: &profiles, Taken: slices.Clone(c.Taken)}
	for _, r := range c.Idle {
		if r.Name == name && elsewhere(r.Placement) {
			out.Taken = append(out.Taken, r)
		} else {
			out.Idle = append(out.Idle, r)
		}
	}
	return out
}

// claimNext chooses the slot that a request without capacity should get next: the one with the fewest memory slices in
// use, and of equals the one that it claimed before. Later requests do not use it, so that small requests do not starve
// large ones.
func (o *occupancy) claimNext(g *Grant, v *View, who requester, before *PendingInstance) *PendingInstance {
	var best *PendingInstance
	var price [2]int
	for i := range v.GPUs {
		d := &v.GPUs[i]
		if !g.mayUse(d) || !d.createsInstances() {
			continue
		}
		t := o.at(d.UUID)
		for j := range d.DynamicProfiles.GI {
			q := &d.DynamicProfiles.GI[j]
			name, ok := g.created(d, q)
			if q.Memory > who.left() || !ok {
				continue
			}
			for _, at := range q.Placements {
				if !g.Chosen.allowsAt(at) {
					continue
				}
				lacks, ok := t.missingSlices(d, at, g.Key(), who.ticket)
				if !ok {
					continue
				}
				m := &PendingInstance{
					Ticket:       who.ticket,
					GPU:          d.UUID,
					InstanceSlot: InstanceSlot{ProfileID: q.ID, Name: name, Placement: at},
				}
				p := [2]int{lacks, 1}
				if before != nil && *before == *m {
					p[1] = 0
				}
				if best == nil || p[0] < price[0] || p[0] == price[0] && p[1] < price[1] {
					best, price = m, p
				}
			}
		}
	}
	return best
}

// missingSlices counts the memory slices of a placement that are in use now. ok is false if it will not become free
// when leases end: another request claims it, it is reserved for another grant, or an instance there is pinned.
func (t *gpuUsage) missingSlices(d *GPUView, at gpu.Placement, k Key, ticket string) (n int, ok bool) {
	for _, c := range t.claims {
		if c.ticket != ticket && c.Placement.Overlaps(at) {
			return 0, false
		}
	}
	for i := range d.Instances {
		switch in := &d.Instances[i]; {
		case !in.Placement.Overlaps(at) || !in.Pinned:
		case !in.InUse:
			return 0, false
		case t.instances[in.Placement] == nil:
			n += int(in.Placement.Size)
		}
	}
	for p, h := range t.instances {
		switch {
		case !p.Overlaps(at):
		case h.reservedForOther(k):
			return 0, false
		case h.inUse():
			n += int(p.Size)
		}
	}
	return n, true
}

// blockingInstance names an instance that no lease uses and that is not removed, for the message to a request that
// waits for capacity.
func blockingInstance(g *Grant, v *View) string {
	for i := range v.GPUs {
		d := &v.GPUs[i]
		if !g.mayUse(d) || !d.createsInstances() {
			continue
		}
		for j := range d.Instances {
			if in := &d.Instances[j]; in.Pinned && in.Unusable != "" {
				return fmt.Sprintf("%s at %d on GPU %d is in the way: %s", in.Name, in.Placement.Start, d.Index, in.Unusable)
			}
		}
	}
	return ""
}
