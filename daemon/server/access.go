package server

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/lease"
)

// Groups that give a role.
const (
	adminGroup    = "gpushare-admin"
	observerGroup = "gpushare"
)

// Access is the role that a route requires of its caller.
type Access int

const (
	Anyone          Access = iota // every local user
	Reader                        // admin, observer, or a tenant's member, who sees only their own
	Member                        // admin, or a tenant's member
	Admin                         // admin
	AdminOrObserver               // admin or observer
	MemberOrOwner                 // admin, a tenant's member, or a user with a lease, although they are a member no more
	ReaderOrOwner                 // as Reader, or a user with a lease
	Engine                        // admin, or a member of node.engine
)

// Caller is a peer with its role.
type Caller struct {
	*Peer
	Name     string // of the user, or "uid 1234" while none is known
	Admin    bool
	Observer bool
	Engine   bool     // a member of node.engine, and of no tenant
	Tenants  []string // of which the caller is a member, in the order of the spec

	owns    func(uid int) bool
	without []string // groups that give a role and that the process has, of which the directory says that the user is not in them
}

// Owner reports whether the caller has a lease, also one that has ended.
func (c *Caller) Owner() bool { return c.owns != nil && c.owns(c.UID) }

// SeesLease reports whether the caller may read a lease: one of their tenants, or their own. A unit's lease has the uid 0.
func (c *Caller) SeesLease(tenant string, uid int) bool {
	return c.Sees(tenant) || uid != 0 && uid == c.UID
}

// Role is the strongest role that the caller has, in the words of the API.
func (c *Caller) Role() string {
	switch {
	case c.Admin:
		return "admin"
	case c.Engine:
		return "engine"
	case len(c.Tenants) > 0:
		return "member"
	case c.Observer:
		return "observer"
	}
	return "none"
}

// ReadsAll reports whether the caller reads what an observer reads: everything but the commands of others. An engine has to know who is
// where.
func (c *Caller) ReadsAll() bool { return c.Admin || c.Observer || c.Engine }

// IsMember reports whether the caller is a member of a tenant.
func (c *Caller) IsMember(tenant string) bool { return slices.Contains(c.Tenants, tenant) }

// Sees reports whether the caller may read a tenant's leases and limits.
func (c *Caller) Sees(tenant string) bool { return c.ReadsAll() || c.IsMember(tenant) }

func (a Access) allows(c *Caller) bool {
	switch a {
	case Anyone:
		return true
	case Reader:
		return c.ReadsAll() || len(c.Tenants) > 0
	case Member:
		return c.Admin || len(c.Tenants) > 0
	case AdminOrObserver: // An engine reads as an observer does.
		return c.ReadsAll()
	case Admin:
		return c.Admin
	case MemberOrOwner:
		return Member.allows(c) || c.Owner()
	case ReaderOrOwner:
		return Reader.allows(c) || c.Owner()
	case Engine:
		return c.Admin || c.Engine
	}
	return false
}

// denied returns the error, with the role that is needed.
func (a Access) denied(c *Caller, what string) *api.Error {
	hint := "an administrator of this host can help"
	switch a {
	case Admin:
		hint = "this needs root or the group " + adminGroup
	case AdminOrObserver:
		hint = "this needs root, the group " + adminGroup + " or the group " + observerGroup
	case Reader, Member, MemberOrOwner, ReaderOrOwner:
		hint = "you are a member of no tenant: an administrator can add you under 'members:' in the spec"
	case Engine:
		hint = "this needs root, the group " + adminGroup + ", or a member of node.engine in the spec who is in no tenant"
	case Anyone:
	}
	message := c.Name + " may not " + what
	if i := slices.IndexFunc(c.without, a.needsGroup); i >= 0 {
		group := c.without[i]
		message += fmt.Sprintf(": the process has the group %s, but the directory does not say that %s is in it", group, c.Name)
		if c.Name != names.UIDLabel(c.UID) {
			hint = fmt.Sprintf("'gpasswd -a %s %s' adds them", c.Name, group)
		}
	}
	return &api.Error{Kind: api.KindDenied, Message: message, Hint: hint}
}

// needsGroup reports whether a group that gives a role gives this one.
func (a Access) needsGroup(group string) bool {
	switch a {
	case Admin:
		return group == adminGroup
	case AdminOrObserver:
		return group == adminGroup || group == observerGroup
	case Member, MemberOrOwner, Engine:
		return group != observerGroup
	case Anyone, Reader, ReaderOrOwner:
	}
	return true
}

// MayEnd reports whether the caller may stop or release a lease.
func (c *Caller) MayEnd(l *lease.Lease) bool { return c.Admin || c.IsUserOf(l) }

// IsUserOf reports whether a lease is the caller's to end, although they may be a member of its tenant no more. Users cannot
// unregister a lease of their process that another user attached, for example an administrator's prolog, nor logins and units, which
// the spec adopts.
func (c *Caller) IsUserOf(l *lease.Lease) bool {
	switch l.Origin {
	case lease.OriginAttached:
		return c.UID == l.AttachedBy
	case lease.OriginLogin, lease.OriginUnit:
		return false
	}
	return c.UID == l.UID
}
