package planner

import (
	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/rename"
	"github.com/gpushare/gpushare/lease"
)

// ComingGrants are the grants of a spec by the names that they have under the spec before it.
func ComingGrants(want *state.Desired) map[lease.Key]lease.Grant {
	out := map[lease.Key]lease.Grant{}
	if want.Spec == nil {
		return out
	}
	renames := want.Renames.In(want.Generation)
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.Grants {
			before := renames.Before(rename.Name{Tenant: t.Name, Grant: t.Grants[j].Name})
			out[lease.Key(before)] = lease.Grant{Tenant: before.Tenant, Spec: t.Grants[j]}
		}
	}
	return out
}

// AdmitPlaced refuses a spec that takes from leases which were placed while it was planned what they have for themselves. live are those
// of now, under the names of the spec.
func AdmitPlaced(now, want *state.Desired, live []lease.Lease, a Authority, command string) error {
	var ends []api.LeaseEnd
	for _, end := range LeaseEnds(now, want, live, nil) {
		if end.Lowers {
			ends = append(ends, end)
		}
	}
	return AdmitEnds(now, want, ends, a, command)
}
