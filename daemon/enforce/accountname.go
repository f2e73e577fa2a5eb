package enforce

import (
	"github.com/gpushare/gpushare/lease"
)

// accountOf is the id of the account of GPU memory that a lease counts in: TENANT/GRANT, or TENANT/GRANT/LEASE of one that has an
// amount of its own.
func accountOf(l *lease.Lease) string {
	id := l.Terms.Tenant + "/" + l.Terms.Spec.Name
	if l.Own.Memory > 0 {
		id += "/" + l.ID
	}
	return id
}

// accountLimit is the limit of the account of a lease, in bytes, next to the leases of its GPU; 0 without one. What leases have for
// themselves is not of the others.
func accountLimit(l *lease.Lease, leases []lease.Lease) uint64 {
	limit := l.Memory()
	if limit == 0 || l.Own.Memory > 0 {
		return limit
	}
	for i := range leases {
		if leases[i].Terms.Key() == l.Terms.Key() {
			limit -= min(leases[i].Own.Memory, limit-1) // A limit of 0 would be none.
		}
	}
	return limit
}
