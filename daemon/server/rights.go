package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/lease"
)

const (
	// confirmedFor is for how long an answer of the directory is not asked for again when a right is used that grants something.
	confirmedFor = 30 * time.Second
	// trustedFor is how old the last answer of a directory that does not answer may be to grant something.
	trustedFor = 10 * time.Minute
	// confirmTimeout limits one question. A directory that hangs delays a request no longer.
	confirmTimeout = 3 * time.Second
)

// Uids of services, whose units may give them groups of which no directory knows: those of the system, and those that systemd
// allocates (DynamicUser=). No user who logs in has one.
const (
	firstUser      = 1000
	firstDynamic   = 61184
	lastDynamic    = 65519
	overflowNobody = 65534
)

func isService(uid int) bool {
	return uid < firstUser || uid >= firstDynamic && uid <= lastDynamic || uid == overflowNobody
}

// standing is one role of a user: whether they have it, and since when that was not asked for again.
type standing struct {
	state names.State
	at    time.Time
}

// better returns the one that gives more: a role by one name is not lost by another.
func (s standing) better(o standing) standing {
	rank := func(x standing) int {
		switch x.state {
		case names.Present:
			return 2
		case names.Unknown:
			return 1
		case names.Absent:
		}
		return 0
	}
	if rank(o) > rank(s) || rank(o) == rank(s) && o.at.After(s.at) {
		return o
	}
	return s
}

// inGroup returns whether a peer has a role by a group: its process must have the group, and the directory must not say that the
// user has left it, because a process keeps the groups of its start.
func (ids *Identities) inGroup(p *Peer, gid int) standing {
	switch {
	case gid < 0 || !p.inGroup(gid):
		return standing{state: names.Absent, at: ids.Now()}
	case p.UID == 0 || !ids.ChecksGroups || isService(p.UID):
		return standing{state: names.Present, at: ids.Now()}
	}
	m := ids.Names.Belongs(p.UID, gid)
	if m.State == names.Absent {
		ids.Names.RecordLeft(p.UID, gid)
	}
	return standing{state: m.State, at: m.At}
}

// without returns the groups that give a role and that the process of a peer has, of which the directory says that the user is not in
// them.
func (ids *Identities) without(p *Peer, now *IdentityTable) []string {
	var out []string
	add := func(gid int, name string) {
		if p.inGroup(gid) && ids.inGroup(p, gid).state == names.Absent && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	add(now.AdminGID, adminGroup)
	add(now.ObserverGID, observerGroup)
	for _, t := range append([]TenantMembers{now.Engine}, now.Tenants...) {
		for j := range min(len(t.GIDs), len(t.groups)) {
			add(t.GIDs[j], t.groups[j])
		}
	}
	return out
}

// asMember returns whether a peer is a member of a tenant.
func (ids *Identities) asMember(p *Peer, t *TenantMembers) standing {
	best := standing{state: names.Absent, at: ids.Now()}
	if i := slices.Index(t.UIDs, p.UID); i >= 0 {
		best = standing{state: names.Present, at: ids.Now()}
		if ids.ChecksGroups && i < len(t.users) {
			best.at = ids.Names.Confirmed(t.users[i])
		}
	}
	for _, gid := range t.GIDs {
		if p.inGroup(gid) {
			best = best.better(ids.inGroup(p, gid))
		}
	}
	return best
}

// asAdmin returns whether a peer is an administrator.
func (ids *Identities) asAdmin(p *Peer) standing {
	now := ids.Table.Load()
	if p.UID == 0 || p.UID == now.Self {
		return standing{state: names.Present, at: ids.Now()}
	}
	return ids.inGroup(p, now.AdminGID)
}

// use returns whether a peer may use a tenant: as its member, or as an administrator.
func (ids *Identities) use(p *Peer, tenant string) standing {
	best := ids.asAdmin(p)
	now := ids.Table.Load()
	for i := range now.Tenants {
		if t := &now.Tenants[i]; t.Name == tenant {
			best = best.better(ids.asMember(p, t))
		}
	}
	return best
}

// Left returns the users who left one of these groups, as far as they are known: those whose processes used gpushare with it.
func (ids *Identities) Left(gids []int) []int { return ids.Names.Left(gids) }

// MemberByGroups returns whether a user with these groups is a member of a tenant, as far as it is known, and whether that was
// answered lately enough to grant something.
func (ids *Identities) MemberByGroups(uid int, gids []int, tenant string) (member, trusted bool) {
	now := ids.Table.Load()
	i := slices.IndexFunc(now.Tenants, func(m TenantMembers) bool { return m.Name == tenant })
	if i < 0 {
		return false, true
	}
	s := ids.asMember(&Peer{UID: uid, GID: -1, Groups: gids}, &now.Tenants[i])
	return s.state != names.Absent, s.state == names.Present && ids.trusts(s)
}

// trusts reports whether an answer of the directory is not too old to grant something.
func (ids *Identities) trusts(s standing) bool { return ids.Now().Sub(s.at) <= trustedFor }

// Requester is the user of a request, whose rights count when the request is placed, and not when it was made.
type Requester struct {
	ids  *Identities
	peer *Peer
}

// RequesterOf returns the requester of the caller's requests.
func (ids *Identities) RequesterOf(c *Caller) *Requester { return &Requester{ids, c.Peer} }

// Standing implements lease.Requester.
func (h *Requester) Standing(tenant string) lease.Standing {
	s, name := h.ids.use(h.peer, tenant), h.ids.Names.UserName(h.peer.UID)
	if s.state == names.Absent {
		return lease.Standing{Denied: NoMember(name, tenant)}
	}
	if s.state == names.Present && h.ids.trusts(s) {
		return lease.Standing{}
	}
	h.ids.WakeNames()
	return lease.Standing{Unsure: h.ids.unsure(name+" is a member of tenant "+tenant, s)}
}

// NoMember says that a user has lost the right to use a tenant.
func NoMember(user, tenant string) string {
	return user + " is not a member of tenant " + tenant + " any more"
}

// unsure says what the directory does not answer, and for how long.
func (ids *Identities) unsure(what string, s standing) string {
	text := "this host's directory has not answered yet whether " + what
	if s.state == names.Present {
		text = fmt.Sprintf(
			"this host's directory has not answered for %s whether %s", api.Duration(ids.Now().Sub(s.at).Truncate(time.Minute)), what,
		)
	}
	if _, why := ids.Names.Failing(); why != nil {
		text += ": " + why.Error()
	}
	return text
}

// Confirm implements lease.Requester.
func (h *Requester) Confirm(ctx context.Context, tenant string) lease.Standing {
	h.ids.confirm(ctx, h.peer)
	return h.Standing(tenant)
}

// confirm asks the directory about a peer whose last answer is not of this moment. The answer, or that there is none, is seen in
// what is known.
func (ids *Identities) confirm(ctx context.Context, p *Peer) {
	if !ids.ChecksGroups || p.UID == 0 {
		return
	}
	if ids.Names.Silent(p.UID) != nil {
		ids.WakeNames() // It is asked again, outside of the request.
		return
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	before := ids.Caller(p)
	_ = ids.Names.Confirm(ctx, p.UID, ids.Now().Add(-confirmedFor)) // What was known counts, as long as it is trusted.
	if after := ids.Caller(p); before.Admin != after.Admin || before.Observer != after.Observer || before.Engine != after.Engine ||
		!slices.Equal(before.Tenants, after.Tenants) {
		ids.UpdateTable()
	}
}

// ConfirmUsers asks the directory about users of whom its last answer is too old to take something from them or to leave it to them,
// and returns those about whom it did not answer.
func (ids *Identities) ConfirmUsers(ctx context.Context, uids []int) (unsure []int) {
	if !ids.ChecksGroups {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	for _, uid := range uids {
		if uid != 0 && ids.Names.Confirm(ctx, uid, ids.Now().Add(-confirmedFor)) != nil {
			unsure = append(unsure, uid)
		}
	}
	return unsure
}

// confirmed asks the directory about the caller of a route that changes something, and returns why they may not use it: their role
// counts only if the directory has confirmed it lately.
func (ids *Identities) confirmed(ctx context.Context, a Access, p *Peer, what string) (*Caller, error) {
	ids.confirm(ctx, p)
	c := ids.Caller(p)
	if !a.allows(c) {
		return c, a.denied(c, what)
	}
	role, text := ids.asAdmin(p), c.Name+" is in the group "+adminGroup
	if a == Member {
		text = c.Name + " is a member of a tenant"
		now := ids.Table.Load()
		for i := range now.Tenants {
			role = role.better(ids.asMember(p, &now.Tenants[i]))
		}
	}
	if a == Engine {
		text = c.Name + " is a member of node.engine"
		role = ids.asEngine(p)
	}
	if role.state == names.Present && ids.trusts(role) {
		return c, nil
	}
	return c, &api.Error{
		Kind: api.KindUnavailable, Message: "cannot " + what + " now: " + ids.unsure(text, role),
		Hint: "try again when 'getent initgroups " + c.Name + "' answers",
	}
}

// Removed returns why a user may not use a tenant any more, and since when nothing of that was asked for again; empty: they may, or
// it is not known. It is for leases, of which no process is asked: the groups of a user are those of the directory.
func (ids *Identities) Removed(uid int, tenant string) (why string, at time.Time) {
	return ids.RemovedUnder(ids.Table.Load(), uid, tenant)
}

// RemovedUnder is Removed for the members of another spec.
func (ids *Identities) RemovedUnder(t *IdentityTable, uid int, tenant string) (why string, at time.Time) {
	if uid == 0 || uid == t.Self {
		return "", time.Time{}
	}
	groups := []int{t.AdminGID}
	for i := range t.Tenants {
		if m := &t.Tenants[i]; m.Name == tenant {
			if slices.Contains(m.UIDs, uid) {
				return "", time.Time{}
			}
			groups = append(groups, m.GIDs...)
		}
	}
	if slices.ContainsFunc(t.Unknown, func(u UnknownMember) bool { return u.Tenant == tenant && u.NoAnswer }) {
		return "", time.Time{} // It may be the name of this user.
	}
	if at = ids.Names.Answered(); at.IsZero() {
		return "", at
	}
	for _, gid := range groups {
		switch {
		case gid < 0:
			continue
		case (!ids.ChecksGroups || isService(uid)) && gid != t.AdminGID:
			return "", time.Time{} // Its process may have the group although the directory does not say so.
		}
		m := ids.Names.Belongs(uid, gid)
		if m.State != names.Absent {
			return "", time.Time{}
		}
		if m.At.Before(at) {
			at = m.At
		}
	}
	return NoMember(ids.Names.UserName(uid), tenant), at
}
