package server

import (
	"github.com/gpushare/gpushare/lease"
)

// MayEnd tells whether the caller may stop or release a lease. What somebody else attached, an administrator's prolog for
// one, is not its own user's to take from the books; nor are logins and units, which the spec adopts.
func (c *Caller) MayEnd(l *lease.Lease) bool {
	switch l.Held {
	case lease.HeldAttached:
		return c.Admin || c.UID == l.By
	case lease.HeldLogin, lease.HeldUnit:
		return c.Admin
	}
	return c.Admin || c.UID == l.UID
}
