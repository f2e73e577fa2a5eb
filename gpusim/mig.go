package gpusim

import "github.com/gpushare/gpushare/gpu"

// setMIGLocked requests a MIG mode. It returns the reason why the mode is not active yet, and the return code of the
// call.
//
// Ampere boards need a reset, which the driver does if no other process has the GPU open. Later boards need no reset, but
// contexts must not exist.
func (g *device) setMIGLocked(on bool, caller int) (activation, ret Ret) {
	if g.model.Grid == 0 {
		return Success, NotSupported
	}
	if on == g.migCurrent && on == g.migPending {
		return Success, Success
	}
	if on == g.migCurrent {
		// Withdrawing a pending change does not need the hardware.
		g.migPending, g.migStored = on, on
		g.node.changes++
		return Success, Success
	}
	if !on && len(g.instances) > 0 {
		return Success, InUse
	}
	g.migPending, g.migStored = on, on
	g.node.changes++
	if g.model.Resetless {
		if len(g.contexts) > 0 {
			return InUse, Success
		}
		g.migCurrent = on
		return Success, Success
	}
	if g.node.cfg.ResetUnavailable {
		return ResetRequired, Success
	}
	if len(g.node.inUseByLocked(g, &caller)) > 0 {
		return InUse, Success
	}
	g.resetLocked()
	return Success, Success
}

// fitsLocked reports whether an instance of a profile can be created at a placement next to the present instances.
func (g *device) fitsLocked(p *Profile, at gpu.Placement) bool {
	legal := false
	for _, q := range p.Placements() {
		legal = legal || q == at
	}
	if !legal {
		return false
	}
	same := uint32(0)
	for _, gi := range g.instances {
		if gi.placement.Overlaps(at) || !p.compatible(gi.profile) || !gi.profile.compatible(p) {
			return false
		}
		if gi.profile.ID == p.ID {
			same++
		}
	}
	return same < p.Max
}

// compatible reports whether an instance of q may exist next to one of p. A profile with all media engines only allows
// profiles without any. One GPU has one media extension, which only one profile can use.
func (p *Profile) compatible(q *Profile) bool {
	return (!p.has("me.all") || q.has("-me")) && (!p.has("me") || !q.has("me") || p.ID == q.ID)
}

// capacityLocked returns how many more instances of a profile fit now.
func (g *device) capacityLocked(p *Profile) uint32 {
	var free []gpu.Placement
	for _, at := range p.Placements() {
		if g.fitsLocked(p, at) {
			free = append(free, at)
		}
	}
	present := uint32(0)
	for _, gi := range g.instances {
		if gi.profile.ID == p.ID {
			present++
		}
	}
	// All placements of one profile have the same size, so choosing the one that ends first gives the maximum.
	n, end := uint32(0), uint32(0)
	for _, at := range free {
		if at.Start >= end && present+n < p.Max {
			n, end = n+1, at.Start+at.Size
		}
	}
	if p.has("me.all") && n > 1 {
		n = 1
	}
	return n
}

// createGILocked creates a GPU instance at a placement, or at the driver's preferred one.
func (g *device) createGILocked(profile uint32, at *gpu.Placement) (*instance, Ret) {
	if !g.migCurrent {
		return nil, NotSupported
	}
	p := g.profileByID(profile)
	if p == nil {
		return nil, NotSupported
	}
	if len(g.instances) == 0 && len(g.contexts) > 0 {
		return nil, InUse
	}
	var place gpu.Placement
	if at != nil {
		place = *at
		legal := false
		for _, q := range p.Placements() {
			legal = legal || q == place
		}
		if !legal {
			return nil, InvalidArgument
		}
		if !g.fitsLocked(p, place) {
			return nil, InsufficientResources
		}
	} else {
		found := false
		for _, s := range p.preferred() {
			if place = (gpu.Placement{Start: s, Size: p.Size}); g.fitsLocked(p, place) {
				found = true
				break
			}
		}
		if !found {
			return nil, InsufficientResources
		}
	}
	g.node.serial++
	gi := &instance{
		dev: g, id: instanceID(g.model.Grid, place), serial: g.node.serial, profile: p, placement: place,
		compute: map[uint32]*compute{}, engine: g.newEngine(),
	}
	g.instances[gi.id] = gi
	g.node.changes++
	g.node.emitLocked(g, eventMIGConfig, 0, gi.id, none)
	return gi, Success
}

// destroyLocked removes a GPU instance.
func (gi *instance) destroyLocked() Ret {
	if len(gi.compute) > 0 || gi.heldLocked() {
		return InUse
	}
	gi.engine.Close()
	delete(gi.dev.instances, gi.id)
	gi.dev.node.changes++
	gi.dev.node.emitLocked(gi.dev, eventMIGConfig, 0, gi.id, none)
	return Success
}

// createCILocked creates a compute instance.
func (gi *instance) createCILocked(profile uint32, at *gpu.Placement) (*compute, Ret) {
	cp, ok := gi.computeProfile(profile)
	if !ok {
		return nil, NotSupported
	}
	free := func(p gpu.Placement) bool {
		for _, ci := range gi.compute {
			if ci.placement.Overlaps(p) {
				return false
			}
		}
		return true
	}
	var place *gpu.Placement
	for _, s := range computeStarts(gi.profile.Slices, cp.slices) {
		p := gpu.Placement{Start: s, Size: cp.slices}
		if at == nil && free(p) || at != nil && *at == p {
			place = &p
			break
		}
	}
	switch {
	case place == nil && at != nil:
		return nil, InvalidArgument
	case place == nil, !free(*place):
		return nil, InsufficientResources
	}
	id := uint32(0)
	for gi.compute[id] != nil {
		id++
	}
	gi.dev.node.serial++
	ci := &compute{
		gi: gi, id: id, serial: gi.dev.node.serial, profile: cp, placement: *place,
		uuid: migUUID(gi.dev.uuid, gi.id, place.Start),
	}
	gi.compute[id] = ci
	gi.dev.node.changes++
	gi.dev.node.emitLocked(gi.dev, eventMIGConfig, 0, gi.id, id)
	return ci, Success
}

// destroyLocked removes a compute instance that no process uses.
func (ci *compute) destroyLocked() Ret {
	for c := range ci.gi.dev.contexts {
		if c.ci == ci {
			return InUse
		}
	}
	delete(ci.gi.compute, ci.id)
	ci.gi.dev.node.changes++
	ci.gi.dev.node.emitLocked(ci.gi.dev, eventMIGConfig, 0, ci.gi.id, ci.id)
	return Success
}

// computeProfile finds a compute-instance profile that this GPU instance offers, by id.
func (gi *instance) computeProfile(id uint32) (computeProfile, bool) {
	for _, cp := range computeProfiles {
		if cp.enum == id && computeFits(gi.profile.Slices, cp.slices) {
			return cp, true
		}
	}
	return computeProfile{}, false
}

// computeCapacityLocked returns how many more compute instances of a profile fit now.
func (gi *instance) computeCapacityLocked(cp computeProfile) uint32 {
	n := uint32(0)
	for _, s := range computeStarts(gi.profile.Slices, cp.slices) {
		taken := false
		for _, ci := range gi.compute {
			taken = taken || ci.placement.Overlaps(gpu.Placement{Start: s, Size: cp.slices})
		}
		if !taken {
			n++
		}
	}
	return n
}

// createWholeLocked creates a GPU instance with its compute instances, for the configuration of a node.
func (g *device) createWholeLocked(want gpu.NewInstance) (*instance, Ret) {
	gi, ret := g.createGILocked(want.ProfileID, &want.Placement)
	if ret != Success {
		return nil, ret
	}
	compute := want.Compute
	if len(compute) == 0 {
		compute = []gpu.NewCompute{{Slices: gi.profile.Slices}}
	}
	for _, c := range gpu.ComputeOrder(compute) {
		id, ok := computeID(c.Slices)
		if !ok {
			return nil, NotSupported
		}
		if _, ret := gi.createCILocked(id, c.Placement); ret != Success {
			return nil, ret
		}
	}
	return gi, Success
}

// computeID returns the profile id of a compute instance with this number of slices.
func computeID(slices uint32) (uint32, bool) {
	for _, cp := range computeProfiles {
		if cp.slices == slices {
			return cp.enum, true
		}
	}
	return 0, false
}
