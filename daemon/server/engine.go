package server

import (
	"context"
	"fmt"
	"strconv"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/names"
	"github.com/gpushare/gpushare/lease"
)

// asEngine returns whether a peer may use keyed leases: as a member of node.engine, or as an administrator. A member of a tenant who
// is also a member of node.engine may not: the engine of a node chooses for all tenants.
func (ids *Identities) asEngine(p *Peer) standing {
	best := ids.asAdmin(p)
	now := ids.Table.Load()
	for i := range now.Tenants {
		if ids.asMember(p, &now.Tenants[i]).state != names.Absent {
			return best
		}
	}
	return best.better(ids.asMember(p, &now.Engine))
}

// EngineRequester is the engine of a request. The user whom the lease is for has no part in it.
type EngineRequester struct {
	ids  *Identities
	peer *Peer
}

// EngineOf returns the requester of the keyed leases of the caller.
func (ids *Identities) EngineOf(c *Caller) *EngineRequester { return &EngineRequester{ids, c.Peer} }

// Standing implements lease.Requester.
func (h *EngineRequester) Standing(string) lease.Standing {
	s, name := h.ids.asEngine(h.peer), h.ids.Names.UserName(h.peer.UID)
	switch {
	case s.state == names.Absent:
		return lease.Standing{Denied: name + " is not a member of node.engine any more"}
	case s.state == names.Present && h.ids.trusts(s):
		return lease.Standing{}
	}
	h.ids.WakeNames()
	return lease.Standing{Unsure: h.ids.unsure(name+" is a member of node.engine", s)}
}

// Confirm implements lease.Requester.
func (h *EngineRequester) Confirm(ctx context.Context, tenant string) lease.Standing {
	h.ids.confirm(ctx, h.peer)
	return h.Standing(tenant)
}

// mostUID is the largest uid: the one above it is no user.
const mostUID = 1<<32 - 2

// UserNamed returns a user of this host by name or by uid. The directory is asked about a name that it was not asked about before.
func (ids *Identities) UserNamed(ctx context.Context, text string) (uid int, name string, err error) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil && n <= mostUID {
		return int(n), ids.Names.UserName(int(n)), nil
	}
	uid, state := ids.Names.UserID(text)
	if state == names.Unknown {
		users, groups := namesOf(ids.Spec())
		ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
		defer cancel()
		_ = ids.Names.Refresh(ctx, append(users, text), groups, false) // The directory keeps the error.
		uid, state = ids.Names.UserID(text)
	}
	switch state {
	case names.Present:
		return uid, text, nil
	case names.Unknown:
		return 0, "", &api.Error{
			Kind:    api.KindUnavailable,
			Message: fmt.Sprintf("cannot find user %q: this host's directory has not answered", text),
			Hint:    "give the uid, or try again when 'getent passwd' answers",
		}
	case names.Absent:
	}
	return 0, "", &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("cannot find user %q on this host", text),
		Hint:    "'getent passwd NAME' shows whom this host knows",
	}
}
