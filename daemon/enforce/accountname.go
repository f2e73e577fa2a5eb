package enforce

import (
	"github.com/gpushare/gpushare/lease"
)

// accountOf is the id of the account of GPU memory that a lease counts in: TENANT/GRANT.
func accountOf(l *lease.Lease) string { return l.Terms.Tenant + "/" + l.Terms.Spec.Name }
