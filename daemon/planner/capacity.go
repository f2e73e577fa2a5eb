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
		if at, r := mig.Pick(list, onDemand(name)); at >= 0 {
			p := r.Layout[0]
			slot := lease.InstanceSlot{ProfileID: p.ProfileID, Name: p.Name, Placement: p.Placement}
			if len(p.Compute) > 0 {
				slot.Name = gpu.ComputeName(p.Name, p.Compute[0].Slices)
			}
			return at, slot
		}
	}
	return -1, lease.InstanceSlot{}
}

// instanceIn is a complete instance at a placement. Planning a change checks whether its compute instance exists.
func instanceIn(r lease.InstanceSlot) gpu.Instance {
	in := gpu.Instance{ProfileID: r.ProfileID, Placement: r.Placement}
	for _, c := range onDemand(r.Name).Compute {
		in.Compute = append(in.Compute, gpu.ComputeInstance{Slices: c.Slices})
	}
	if len(in.Compute) == 0 {
		in.Compute = []gpu.ComputeInstance{{}}
	}
	return in
}

// onDemand requests the instance that is created for a grant. For one that names a compute instance, the instance is split into
// as many as it has slices for: the next leases of the grant get the others.
func onDemand(name string) mig.Request {
	n, err := gpu.ParseProfile(name)
	if err != nil || n.Compute == 0 || n.Compute == n.Slices {
		return mig.Request{Name: name}
	}
	r := mig.Request{}
	for range n.Slices / n.Compute {
		r.Compute = append(r.Compute, gpu.NewCompute{Slices: n.Compute})
	}
	n.Compute = 0
	r.Name = n.String()
	return r
}
