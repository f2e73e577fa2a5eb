package planner

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// Capacity finds room for MIG instances with the planner of package mig.
type Capacity struct{}

// Find returns a place for one more instance, of the first profile that fits on any of the GPUs.
func (Capacity) Find(profiles []string, on []lease.GPUCapacity) (int, lease.InstanceSlot) {
	list := make([]mig.Candidate, len(on))
	for i := range on {
		list[i] = mig.Candidate{Profiles: *on[i].Profiles}
		for _, r := range on[i].Taken {
			list[i].Present = append(list[i].Present, mig.Present{Instance: instanceIn(r), InUse: true, Pinned: true})
		}
		for _, r := range on[i].Idle {
			list[i].Present = append(list[i].Present, mig.Present{Instance: instanceIn(r)})
		}
	}
	for _, name := range profiles {
		if at, r := mig.Pick(list, mig.Request{Name: name}); at >= 0 {
			p := r.Layout[0]
			return at, lease.InstanceSlot{ProfileID: p.ProfileID, Name: p.Name, Placement: p.Placement}
		}
	}
	return -1, lease.InstanceSlot{}
}

// instanceIn is a complete instance at a placement. Planning a change checks whether its compute instance exists.
func instanceIn(r lease.InstanceSlot) gpu.Instance {
	return gpu.Instance{ProfileID: r.ProfileID, Placement: r.Placement, Compute: []gpu.ComputeInstance{{}}}
}
