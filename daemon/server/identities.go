package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/names"
)

const (
	// NameWait is how long an apply or a reload waits for the host's directory. A later answer is used when it comes.
	NameWait = 250 * time.Millisecond
	// NameStartWait is how long the start waits for it. Until then no request is served.
	NameStartWait = 2 * time.Second
	// nameQuerySpacing is the minimum time between two queries without an apply or reload.
	nameQuerySpacing = time.Second
	// nameQueryInterval is the maximum time between two queries. Names that were answered in it are not queried.
	nameQueryInterval = 30 * time.Second
	// nameQueryTimeout limits one query for all names.
	nameQueryTimeout = 30 * time.Second
)

// IdentityTable holds the roles and members as far as the host's names are known. It is immutable.
type IdentityTable struct {
	Self        int // the uid that the daemon runs as
	AdminGID    int // -1 when the group is not known
	ObserverGID int
	Engine      TenantMembers // of node.engine; it has no name
	Tenants     []TenantMembers
	Unknown     []UnknownMember
}

// TenantMembers are the members of one tenant, by uid and gid.
type TenantMembers struct {
	Name string
	UIDs []int
	GIDs []int

	users  []string // the names of UIDs
	groups []string // the names of GIDs
}

// UnknownMember is a name in the spec that the host does not know now.
type UnknownMember struct {
	Tenant   string
	name     string // "user alice"
	NoAnswer bool   // the directory did not answer: it may know the name
}

// Text returns which name of which tenant is not known.
func (u *UnknownMember) Text() string {
	of := " of tenant " + u.Tenant
	if u.Tenant == "" {
		of = " of node.engine"
	}
	if u.NoAnswer {
		return "this host's directory has not answered about " + u.name + of
	}
	return "this host does not know " + u.name + of
}

// Identities knows the users of this host: names, roles, and members of tenants.
type Identities struct {
	*report.Reporter
	Tasks   *loop.Group
	Spec    func() *api.Spec   // in force; nil: none is
	Changed func()             // is called after members may have changed
	Owns    func(uid int) bool // whether a user has a lease, also one that has ended; nil: none has
	Names   *names.Directory
	// ChecksGroups: a group counts only while the directory says that the user is in it. Without it the groups of a process count.
	ChecksGroups bool
	Table        atomic.Pointer[IdentityTable] // in force

	mu   locks.Mutex[locks.IdentityRefresh] // one call updates the table at a time, so that the newest names win
	wake loop.Wake
	next changes
}

// changes wakes all that wait for a change of roles.
type changes struct {
	mu   locks.Mutex[locks.Leaf] // guards wake
	wake chan struct{}
}

// Next returns a channel that is closed when roles may have changed.
func (ids *Identities) Next() <-chan struct{} {
	x := &ids.next
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake == nil {
		x.wake = make(chan struct{})
	}
	return x.wake
}

// Announce wakes all that wait for a change of roles.
func (ids *Identities) Announce() { ids.next.report() }

func (x *changes) report() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wake != nil {
		close(x.wake)
		x.wake = nil
	}
}

// NewIdentities knows only root, and the daemon's own user, self, who is an administrator too. That is given, so that the users of a
// test have the roles that the test gives them, and none from the user who runs it. getent is the program that queries the host's names;
// "off": none. The caller sets Spec and Changed.
func NewIdentities(r *report.Reporter, tasks *loop.Group, self int, getent string) *Identities {
	ids := &Identities{
		Reporter: r, Tasks: tasks, Names: &names.Directory{}, wake: loop.NewWake(),
		Spec: func() *api.Spec { return nil }, Changed: func() {},
	}
	if getent != "off" {
		ids.Names.Program = getent
	}
	ids.Table.Store(TableOf(self, nil, ids.Names))
	return ids
}

// Caller returns a peer with its role now. It never waits, because every request calls it: until the directory has answered the groups
// of the process count.
func (ids *Identities) Caller(p *Peer) *Caller {
	c := &Caller{Peer: p, Name: ids.Names.UserName(p.UID), owns: ids.Owns}
	now := ids.Table.Load()
	c.Admin = ids.asAdmin(p).state != names.Absent
	c.Observer = ids.inGroup(p, now.ObserverGID).state != names.Absent
	for i := range now.Tenants {
		if t := &now.Tenants[i]; ids.asMember(p, t).state != names.Absent {
			c.Tenants = append(c.Tenants, t.Name)
		}
	}
	c.Engine = len(c.Tenants) == 0 && ids.asMember(p, &now.Engine).state != names.Absent
	c.without = ids.without(p, now)
	if p.AsEngine {
		c.Admin, c.Observer, c.Tenants, c.Engine = false, false, nil, c.Engine || c.Admin
	}
	return c
}

// HasRole reports whether a peer has any role, or a lease.
func (ids *Identities) HasRole(p *Peer) bool {
	c := ids.Caller(p)
	return c.Role() != "none" || c.Owner()
}

// TableOf returns what is known of the names in a spec. It does not query the directory.
func TableOf(self int, spec *api.Spec, dir *names.Directory) *IdentityTable {
	group := func(name string) int { gid, _ := dir.GroupID(name); return gid }
	r := &IdentityTable{Self: self, AdminGID: group(adminGroup), ObserverGID: group(observerGroup)}
	if spec == nil {
		return r
	}
	members := func(tenant string, of *api.Members) TenantMembers {
		m := TenantMembers{Name: tenant}
		resolve := func(kind string, all []string, get func(string) (int, names.State)) (ids []int) {
			for _, name := range all {
				id, state := get(name)
				if state == names.Present {
					ids = append(ids, id)
				} else {
					r.Unknown = append(r.Unknown, UnknownMember{tenant, kind + " " + name, state == names.Unknown})
				}
			}
			return ids
		}
		m.UIDs = resolve("user", of.Users, func(name string) (int, names.State) {
			id, state := dir.UserID(name)
			if state == names.Present {
				m.users = append(m.users, name)
			}
			return id, state
		})
		m.GIDs = resolve("group", of.Groups, func(name string) (int, names.State) {
			id, state := dir.GroupID(name)
			if state == names.Present {
				m.groups = append(m.groups, name)
			}
			return id, state
		})
		return m
	}
	if e := spec.Node.Engine; e != nil {
		r.Engine = members("", &e.Members)
	}
	for i := range spec.Tenants {
		t := &spec.Tenants[i]
		r.Tenants = append(r.Tenants, members(t.Name, &t.Members))
	}
	return r
}

// namesOf returns the users and groups that are needed for a spec.
func namesOf(spec *api.Spec) (users, groups []string) {
	groups = []string{adminGroup, observerGroup}
	if spec != nil {
		if e := spec.Node.Engine; e != nil {
			users, groups = append(users, e.Members.Users...), append(groups, e.Members.Groups...)
		}
		for i := range spec.Tenants {
			users = append(users, spec.Tenants[i].Members.Users...)
			groups = append(groups, spec.Tenants[i].Members.Groups...)
		}
	}
	return users, groups
}

// QueryNames queries the host's directory for the names of a spec, and waits no longer than wait. A later answer is used
// when it comes. all also queries names that are known and fresh.
func (ids *Identities) QueryNames(spec *api.Spec, wait time.Duration, all bool) {
	done := make(chan struct{})
	ids.Tasks.Go(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(ids.Tasks.Context(), nameQueryTimeout)
		defer cancel()
		users, groups := namesOf(spec)
		_ = ids.Names.Refresh(ctx, users, groups, all) // The directory keeps the error, and UpdateTable reports it.
		ids.UpdateTable()
	})
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// Run keeps names fresh, outside of every request.
func (ids *Identities) Run(ctx context.Context) {
	for {
		// Without a wake-up too: what is known may have changed.
		if _, ok := ids.wake.Every(ctx, nameQueryInterval); !ok {
			return
		}
		ids.QueryNames(ids.Spec(), nameQueryTimeout, false)
		loop.Pause(ctx, nameQuerySpacing) // So that many unknown callers cause few queries.
	}
}

// QueryAgain queries the directory about users, each unless both their name and their groups were answered after the time, and then about
// the names of the spec that it did not know. It may take long.
func (ids *Identities) QueryAgain(ctx context.Context, users map[int]time.Time) {
	for uid, since := range users {
		one, cancel := context.WithTimeout(ctx, confirmTimeout)
		_ = ids.Names.Confirm(one, uid, since) // The directory keeps the error.
		cancel()
	}
	ids.QueryNames(ids.Spec(), nameQueryTimeout, false)
}

// WakeNames makes the daemon look up names soon: after the node was observed, when a login appears, and when the name of a
// caller is not known.
func (ids *Identities) WakeNames() {
	ids.wake.Set()
}

// Replace builds the table of a spec that is put in force. replace is called once, and calls store where the spec and the table are to
// be replaced together.
func (ids *Identities) Replace(spec *api.Spec, replace func(store func())) {
	ids.mu.Lock()
	r := TableOf(ids.Table.Load().Self, spec, ids.Names)
	replace(func() { ids.Table.Store(r) })
	ids.mu.Unlock()
	ids.UpdateTable()
}

// UpdateTable builds the table from the names that are known now.
func (ids *Identities) UpdateTable() {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	r := TableOf(ids.Table.Load().Self, ids.Spec(), ids.Names)
	ids.Table.Store(r)
	unknown := map[string]api.Condition{}
	for i := range r.Unknown {
		u := &r.Unknown[i]
		unknown[u.Tenant+" "+u.name] = api.Condition{
			Tenant:  u.Tenant,
			Message: u.Text(),
			Hint:    "correct the name, or create the user or group; until then the name gives no rights",
		}
	}
	ids.Conditions.Replace("unknown-member", unknown)
	failing := map[string]api.Condition{}
	if _, why := ids.Names.Failing(); why != nil {
		failing[""] = api.Condition{
			Message: "cannot query the host's users and groups: " + why.Error(),
			Hint:    "known names stay valid; try 'getent passwd NAME', and check the service behind it (sssd, nslcd, winbind)",
		}
	}
	ids.Conditions.Replace("names", failing)
	ids.Invalidate()
	ids.Announce()
	ids.Changed() // A logged-in user may be a member now, and one who waits for a place may not be one any more.
}
