package status

import (
	"slices"

	"github.com/gpushare/gpushare/api"
)

// anotherTenant stands for a lease of a tenant that the caller is no member of.
const anotherTenant = "another tenant"

// restrictInstances replaces the leases of instances that the caller may not see. It changes no list that it was given.
func restrictInstances(list []api.InstanceStatus, own map[string]bool) []api.InstanceStatus {
	hide := func(id *string) {
		if *id != "" && !own[*id] {
			*id = anotherTenant
		}
	}
	list = slices.Clone(list)
	for i := range list {
		in := &list[i]
		in.Leases, in.Compute = slices.Clone(in.Leases), slices.Clone(in.Compute)
		if in.Lease != "" && !own[in.Lease] {
			in.Use = nil // What another tenant does is theirs.
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
