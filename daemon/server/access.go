package server

import (
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/lease"
)

// Groups that give a role.
const (
	adminGroup    = "gpushare-admin"
	observerGroup = "gpushare"
)

// access is the role that a route requires of its caller.
type access int

const (
	Anyone          access = iota // every local user
	Reader                        // admin, observer, or a tenant's member, who sees only their own
	Member                        // admin, or a tenant's member
	Admin                         // admin
	AdminOrObserver               // admin or observer
)

// Caller is a peer with its role.
type Caller struct {
	*Peer
	Name     string // of the user, or "uid 1234" while none is known
	Admin    bool
	Observer bool
	Tenants  []string // of which the caller is a member, in the order of the spec
}

// Role is the strongest role that the caller has, in the words of the API.
func (c *Caller) Role() string {
	switch {
	case c.Admin:
		return "admin"
	case len(c.Tenants) > 0:
		return "member"
	case c.Observer:
		return "observer"
	}
	return "none"
}

// IsMember reports whether the caller is a member of a tenant.
func (c *Caller) IsMember(tenant string) bool { return slices.Contains(c.Tenants, tenant) }

// Sees reports whether the caller may read a tenant's leases and limits.
func (c *Caller) Sees(tenant string) bool { return c.Admin || c.Observer || c.IsMember(tenant) }

func (a access) allows(c *Caller) bool {
	switch a {
	case Anyone:
		return true
	case Reader:
		return c.Admin || c.Observer || len(c.Tenants) > 0
	case Member:
		return c.Admin || len(c.Tenants) > 0
	case AdminOrObserver:
		return c.Admin || c.Observer
	case Admin:
		return c.Admin
	}
	return false
}

// denied returns the error, with the role that is needed.
func (a access) denied(c *Caller, what string) *api.Error {
	hint := "an administrator of this host can help"
	switch a {
	case Admin:
		hint = "this needs root or the group " + adminGroup
	case AdminOrObserver:
		hint = "this needs root, the group " + adminGroup + " or the group " + observerGroup
	case Reader, Member:
		hint = "you are a member of no tenant: an administrator can add you under 'members:' in the spec"
	case Anyone:
	}
	return &api.Error{Kind: api.KindDenied, Message: c.Name + " may not " + what, Hint: hint}
}

// MayEnd reports whether the caller may stop or release a lease. Users cannot unregister a lease of their process that
// another user attached, for example an administrator's prolog, nor logins and units, which the spec adopts.
func (c *Caller) MayEnd(l *lease.Lease) bool {
	switch l.Origin {
	case lease.OriginAttached:
		return c.Admin || c.UID == l.AttachedBy
	case lease.OriginLogin, lease.OriginUnit:
		return c.Admin
	}
	return c.Admin || c.UID == l.UID
}
