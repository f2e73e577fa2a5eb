package daemon

import (
	"context"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/names"
)

const (
	// nameGrace is how long an apply or a reload waits for the host's directory. What is answered later counts then.
	nameGrace = 250 * time.Millisecond
	// nameStart is how long the start waits for it: before, nobody is served.
	nameStart = 2 * time.Second
	// nameSpacing is the least time between two askings that nobody ordered.
	nameSpacing = time.Second
	// nameAsking bounds one asking of everything.
	nameAsking = 30 * time.Second
)

// roster is who is who by what is known of the host's names. It is immutable.
type roster struct {
	self        int // the uid that the daemon runs as
	adminGID    int // -1 when the group is not known
	observerGID int
	tenants     []tenantMembers
	unknown     []unknownMember
}

type tenantMembers struct {
	name string
	uids []int
	gids []int
}

// unknownMember is a name in the spec that stands for nobody now.
type unknownMember struct {
	tenant  string
	name    string // "user alice"
	unasked bool   // the directory did not answer: it may know him
}

func (u *unknownMember) text() string {
	if u.unasked {
		return "this host's directory has not answered about " + u.name + " of tenant " + u.tenant
	}
	return "this host does not know " + u.name + " of tenant " + u.tenant
}

// newRosters knows nobody yet but root. getent is the program that the host's names are asked with; "off": none is.
func newRosters(getent string) *rosters {
	r := &rosters{names: &names.Directory{}, kicks: loop.NewWake()}
	if getent != "off" {
		r.names.Program = getent
	}
	r.p.Store(rosterOf(os.Geteuid(), nil, r.names))
	return r
}

// rosters holds the roster in force.
type rosters struct {
	p     atomic.Pointer[roster]
	names *names.Directory

	mu    sync.Mutex // one makes a new one, so that the newest names win
	kicks loop.Wake
}

// caller gives a peer its role. It never waits: it stands in every request.
func (r *rosters) caller(p *peer) *caller {
	c := &caller{peer: p, name: r.names.UserName(p.uid)}
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

// known tells whether a peer has any role.
func (r *rosters) known(p *peer) bool { return r.caller(p).role() != "nobody" }

// rosterOf reads what is known of the names in a spec. It asks nobody.
func rosterOf(self int, spec *api.Spec, dir *names.Directory) *roster {
	group := func(name string) int { gid, _ := dir.GroupID(name); return gid }
	r := &roster{self: self, adminGID: group(adminGroup), observerGID: group(observerGroup)}
	if spec == nil {
		return r
	}
	for i := range spec.Tenants {
		t := &spec.Tenants[i]
		m := tenantMembers{name: t.Name}
		look := func(kind string, all []string, get func(string) (int, names.State)) (ids []int) {
			for _, name := range all {
				id, state := get(name)
				if state == names.Present {
					ids = append(ids, id)
				} else {
					r.unknown = append(r.unknown, unknownMember{t.Name, kind + " " + name, state == names.Unasked})
				}
			}
			return ids
		}
		m.uids = look("user", t.Members.Users, dir.UserID)
		m.gids = look("group", t.Members.Groups, dir.GroupID)
		r.tenants = append(r.tenants, m)
	}
	return r
}

// namesOf are the users and groups that matter with a spec.
func namesOf(spec *api.Spec) (users, groups []string) {
	groups = []string{adminGroup, observerGroup}
	if spec != nil {
		for i := range spec.Tenants {
			users = append(users, spec.Tenants[i].Members.Users...)
			groups = append(groups, spec.Tenants[i].Members.Groups...)
		}
	}
	return users, groups
}

// learn asks the host's directory for the names of a spec, and waits no longer than grace. What comes later is taken up
// when it comes. all asks also for what is known and fresh.
func (d *Identities) learn(spec *api.Spec, grace time.Duration, all bool) {
	done := make(chan struct{})
	d.tasks.Go(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(d.tasks.Context(), nameAsking)
		defer cancel()
		users, groups := namesOf(spec)
		_ = d.rosters.names.Refresh(ctx, users, groups, all) // The directory remembers why, and renewRoster shows it.
		d.renewRoster()
	})
	wait := time.NewTimer(grace)
	defer wait.Stop()
	select {
	case <-done:
	case <-wait.C:
	}
}

// nameLoop keeps names fresh, outside of every request.
func (d *Identities) nameLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.rosters.kicks.C():
		}
		d.learn(d.spec(), nameAsking, false)
		loop.Pause(ctx, nameSpacing) // So that many strangers make few askings.
	}
}

// kickNames makes the daemon look names up soon: after a look at the node, when a login appears, and when somebody came
// whose name is not known.
func (d *Identities) kickNames() {
	d.rosters.kicks.Set()
}

// renewRoster takes up what is known now.
func (d *Identities) renewRoster() {
	d.rosters.mu.Lock()
	defer d.rosters.mu.Unlock()
	r := rosterOf(d.rosters.p.Load().self, d.spec(), d.rosters.names)
	d.rosters.p.Store(r)
	unknown := map[string]api.Condition{}
	for i := range r.unknown {
		u := &r.unknown[i]
		unknown[u.tenant+" "+u.name] = api.Condition{Tenant: u.tenant, Message: u.text(), Hint: "correct the name, or create it; it gives nobody any rights now, and does so without a restart once it is known"}
	}
	d.Conditions.replace("unknown-member", unknown)
	failing := map[string]api.Condition{}
	if _, why := d.rosters.names.Failing(); why != nil {
		failing[""] = api.Condition{
			Message: "the host's users and groups cannot be asked for: " + why.Error(),
			Hint:    "what was known before stays; try 'getent passwd NAME', and see the service behind it (sssd, nslcd, winbind)",
		}
	}
	d.Conditions.replace("names", failing)
	d.touch()
	d.changed() // Who is logged in may be somebody's now.
}
