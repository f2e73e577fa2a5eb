package daemon

import (
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync/atomic"

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
	return &api.Error{Kind: api.KindDenied, Message: userName(c.uid) + " may not " + what, Hint: hint}
}

// roster is who is who, resolved outside the request path. It is immutable.
type roster struct {
	self        int // the uid that the daemon runs as
	adminGID    int // -1 when the group does not exist
	observerGID int
	tenants     []tenantMembers
	unknown     []string // names in the spec that this host does not know
}

type tenantMembers struct {
	name string
	uids []int
	gids []int
}

// rosters holds the roster in force.
type rosters struct{ p atomic.Pointer[roster] }

func (r *rosters) caller(p *peer) *caller {
	c := &caller{peer: p}
	now := r.p.Load()
	c.admin = p.uid == 0 || p.uid == now.self || p.inGroup(now.adminGID)
	c.observer = p.inGroup(now.observerGID)
	for i := range now.tenants {
		t := &now.tenants[i]
		if slices.Contains(t.uids, p.uid) || slices.ContainsFunc(t.gids, p.inGroup) {
			c.tenants = append(c.tenants, t.name)
		}
	}
	return c
}

// resolveRoster looks every name up. It may block for as long as the host's name service does.
func resolveRoster(spec *api.Spec) *roster {
	r := &roster{self: os.Geteuid(), adminGID: groupID(adminGroup), observerGID: groupID(observerGroup)}
	if spec == nil {
		return r
	}
	for i := range spec.Tenants {
		t := &spec.Tenants[i]
		m := tenantMembers{name: t.Name}
		for _, name := range t.Members.Users {
			if uid := userID(name); uid >= 0 {
				m.uids = append(m.uids, uid)
			} else {
				r.unknown = append(r.unknown, "user "+name+" of tenant "+t.Name)
			}
		}
		for _, name := range t.Members.Groups {
			if gid := groupID(name); gid >= 0 {
				m.gids = append(m.gids, gid)
			} else {
				r.unknown = append(r.unknown, "group "+name+" of tenant "+t.Name)
			}
		}
		r.tenants = append(r.tenants, m)
	}
	return r
}

func groupID(name string) int {
	g, err := user.LookupGroup(name)
	if err != nil {
		return -1
	}
	id, err := strconv.Atoi(g.Gid)
	if err != nil {
		return -1
	}
	return id
}

func userID(name string) int {
	u, err := user.Lookup(name)
	if err != nil {
		return -1
	}
	id, err := strconv.Atoi(u.Uid)
	if err != nil {
		return -1
	}
	return id
}

// userName gives the name of a uid, or "uid 1234".
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return "uid " + strconv.Itoa(uid)
}
