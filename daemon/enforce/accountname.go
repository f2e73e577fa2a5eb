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
