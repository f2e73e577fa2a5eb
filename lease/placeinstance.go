package lease

import (
	"cmp"
	"fmt"
	"math"
)

// instanceSearch is the search for an instance, or for a part of one that is split, and what is in the way.
type instanceSearch struct {
	g   *Grant
	o   *occupancy
	who requester

	best     instanceCandidate // of those that the request may have; without an instance there is none
	closed   closedPlaces
	matching int    // parts that match, in use or not
	dynamic  bool   // an instance could be created
	smallest uint64 // memory of what it could have on these GPUs
}

// instanceCandidate is a part that the request may have.
type instanceCandidate struct {
	gpu      *GPUView
	instance *InstanceView
	part     part
	own      bool // reserved for this grant, or created for this request
	lent     bool // claimed by an earlier request, which starts after the end of this one
	busy     int
}

// placeInstance chooses the smallest idle instance that matches, one that is not split first; among equals the one on the
// GPU with the most instances in use, so that other GPUs stay idle.
func placeInstance(g *Grant, v *View, o *occupancy, who requester) (*Place, *obstacle) {
	s := instanceSearch{g: g, o: o, who: who, smallest: math.MaxUint64}
	for d := range g.open(v, &s.closed) {
		s.device(d)
	}
	if s.best.instance == nil {
		return nil, s.obstacle(v)
	}
	return s.best.part.place(s.best.gpu, s.best.instance), nil
}

// compareInstances puts first what a request should have.
func compareInstances(a, b *instanceCandidate) int {
	return cmp.Or(
		compareBool(b.own, a.own), compareBool(a.lent, b.lent), compareBool(a.part.device != "", b.part.device != ""),
		cmp.Compare(a.instance.Slices, b.instance.Slices), cmp.Compare(a.instance.Memory, b.instance.Memory),
		cmp.Compare(len(a.instance.Attributes), len(b.instance.Attributes)), cmp.Compare(b.part.slices, a.part.slices),
		cmp.Compare(b.busy, a.busy), cmp.Compare(a.gpu.Index, b.gpu.Index),
		cmp.Compare(a.instance.Placement.Start, b.instance.Placement.Start),
	)
}

// device searches one GPU.
func (s *instanceSearch) device(d *GPUView) {
	if d.DynamicProfiles != nil && s.g.Chosen.creates() {
		s.dynamic = true
		s.smallest = min(s.smallest, s.g.smallest(d.Profiles))
	}
	busy := 0
	for _, h := range s.o.at(d.UUID).instances {
		if h.inUse() {
			busy++
		}
	}
	for j := range d.Instances {
		in := &d.Instances[j]
		if in.Unusable != "" || len(in.UUIDs) == 0 {
			continue
		}
		for p := range in.parts() {
			// On demand a whole instance can be created for a grant that names one.
			if s.g.Chosen.allows(in, p.device) && s.g.matches(&p.ProfileView) &&
				(p.device == "" || d.DynamicProfiles == nil || s.g.namesCompute()) {
				s.part(d, in, p, busy)
			}
		}
	}
}

// part adds a part that matches, if the request may have it.
func (s *instanceSearch) part(d *GPUView, in *InstanceView, p part, busy int) {
	t := s.o.at(d.UUID)
	s.matching++
	p.occupied = cmp.Or(p.occupied, t.instances[in.Placement].memoryInNoProcess(in.InNoProcess))
	if p.occupied != "" && !s.who.inPlace {
		s.closed.addInstance(d, in, &p)
		return
	}
	memory := s.who.moreIn(d.UUID, in, &p)
	s.smallest = min(s.smallest, memory)
	if memory > s.who.left() || !t.free(in.Placement, p.device, s.g.Key(), &s.who) {
		return
	}
	h := t.instances[in.Placement].at(p.device)
	own := h != nil && h.reserved != nil || t.createdFor(in.Placement, s.who.ticket)
	c := instanceCandidate{d, in, p, own, t.lends(in.Placement, p.device, &s.who), busy}
	if s.best.instance == nil || compareInstances(&c, &s.best) < 0 {
		s.best = c
	}
}

// obstacle is why there is none.
func (s *instanceSearch) obstacle(v *View) *obstacle {
	if (s.matching > 0 || s.dynamic) && s.smallest > s.who.left() {
		return s.who.tooMuch(s.smallest)
	}
	ob := &obstacle{canCreate: s.dynamic, mayFitSoon: s.closed.reopensSoon}
	switch {
	case s.dynamic:
		ob.text = "no capacity for another " + s.g.requirement() + " instance"
		if s.closed.any() {
			ob.text += "; " + s.closed.text()
		}
		if why := blockingInstance(s.g, v); why != "" {
			ob.text += "; " + why
		}
	case s.matching == 0 && s.closed.any():
		ob.text = s.closed.text()
	case s.matching == 0:
		ob.text = "there is no " + s.g.requirement() + " instance now"
	default:
		ob.text = fmt.Sprintf("no idle %s instance: %d of %d in use or reserved", s.g.requirement(), s.matching, s.matching)
		if s.closed.any() {
			ob.text += "; " + s.closed.text()
		}
	}
	return ob
}
