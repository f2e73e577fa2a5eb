package planner

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// Capacity implements lease.Rooms by the planner.
type Capacity struct{}

// Find asks the planner for one more instance of the first profile that has room anywhere.
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

// instanceIn is what the planner reads of a room: an instance that is whole. Whether one that is there is whole shows
// when the making of it is planned.
func instanceIn(r lease.InstanceSlot) gpu.Instance {
	return gpu.Instance{ProfileID: r.ProfileID, Placement: r.Placement, Compute: []gpu.ComputeInstance{{}}}
}
