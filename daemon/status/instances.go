package status

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
)

// anotherTenant stands for a lease of a tenant that the caller is no member of.
const anotherTenant = "another tenant"

// restrictInstances replaces the leases of instances that the caller may not see. It changes no list that it was given.
// shown are the leases that they may see at all, and own those of them that are theirs or of their tenants: only who had an instance
// for the whole interval sees how it was used in it.
func restrictInstances(list []api.InstanceStatus, shown map[string]bool, own []api.Lease) []api.InstanceStatus {
	hide := func(id *string) {
		if *id != "" && !shown[*id] {
			*id = anotherTenant
		}
	}
	list = slices.Clone(list)
	for i := range list {
		in := &list[i]
		in.Leases, in.Compute = slices.Clone(in.Leases), slices.Clone(in.Compute)
		if !slices.ContainsFunc(own, func(l api.Lease) bool { return isIn(in, l.ID) && ranFor(&l, in.Use) }) {
			in.Use = nil // What another tenant does is theirs, also what was done by one that had the instance before.
		}
		hide(&in.Lease)
		for j := range in.Leases {
			hide(&in.Leases[j])
		}
		for j := range in.Compute {
			hide(&in.Compute[j].Lease)
		}
	}
	return list
}

// isIn reports whether a lease has an instance, or a part of it.
func isIn(in *api.InstanceStatus, lease string) bool {
	return in.Lease == lease || slices.Contains(in.Leases, lease)
}

// ranFor reports whether a lease ran for all of the interval in which an instance was used.
func ranFor(l *api.Lease, u *api.InstanceUse) bool {
	return l.Started != nil && u != nil && !l.Started.After(u.ReadAt.Add(-time.Duration(u.IntervalSeconds*float64(time.Second))))
}
