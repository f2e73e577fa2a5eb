package daemon

import (
	"slices"

	"github.com/gpushare/gpushare/api"
)

// Groups that give a role.
const (
	adminGroup    = "gpushare-admin"
	observerGroup = "gpushare"
)

// access is what a route asks of its caller.
type access int

const (
	anyone access = iota // every local user
	reader               // admin, observer, or a tenant's member, who sees his own
	member               // admin, or a tenant's member
	admin                // admin
	seer                 // admin or observer
)

// caller is a peer with its role.
type caller struct {
	*peer
	name     string // of the user, or "uid 1234" while none is known
	admin    bool
	observer bool
	tenants  []string // of which it is a member, in the order of the spec
}

func (c *caller) role() string {
	switch {
	case c.admin:
		return "admin"
	case len(c.tenants) > 0:
		return "member"
	case c.observer:
		return "observer"
	}
	return "nobody"
}

func (c *caller) isMember(tenant string) bool { return slices.Contains(c.tenants, tenant) }

// sees tells whether the caller may look at a tenant's leases and limits.
func (c *caller) sees(tenant string) bool { return c.admin || c.observer || c.isMember(tenant) }

func (a access) allows(c *caller) bool {
	switch a {
	case anyone:
		return true
	case reader:
		return c.admin || c.observer || len(c.tenants) > 0
	case member:
		return c.admin || len(c.tenants) > 0
	case seer:
		return c.admin || c.observer
	case admin:
		return c.admin
	}
	return false
}

// denied says what would be needed.
func (a access) denied(c *caller, what string) *api.Error {
	hint := "ask an administrator of this host"
	switch a {
	case admin:
		hint = "this needs root or the group " + adminGroup
	case seer:
		hint = "this needs root, the group " + adminGroup + " or the group " + observerGroup
	case reader, member:
		hint = "you are a member of no tenant: an administrator can add you under 'members:' in the spec"
	case anyone:
	}
	return &api.Error{Kind: api.KindDenied, Message: c.name + " may not " + what, Hint: hint}
}
