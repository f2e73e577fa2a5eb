package state

import (
	"slices"

	"github.com/gpushare/gpushare/api"
)

// NearStrict tells whether the memory of the tenant's leases is bound to the NUMA nodes of their GPUs.
func (d *Desired) NearStrict(tenant string) bool {
	return d.Spec != nil && slices.ContainsFunc(d.Spec.Tenants, func(t api.TenantSpec) bool {
		return t.Name == tenant && t.CPU != nil && t.CPU.Near == "strict"
	})
}
