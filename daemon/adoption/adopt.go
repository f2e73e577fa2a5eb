package adoption

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/devicepolicy"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// adoptEvery is how often it is looked who is there when nobody tells: for a place that came free, and for what a host
// without a service manager never tells.
const adoptEvery = 5 * time.Second

// Adoption knows what was adopted. Logins and units are taken into a grant by the spec alone: nobody asks for a lease.
type Adoption struct {
	Wake loop.Wake

	mu     locks.Mutex[locks.Adoption] // guards what follows; one looks at a time
	groups map[int][]int               // of the users who are logged in, as they were at the login
	given  map[string]string           // newcomers that had a lease: its id. Who ended it did not mean another one
	by     uint64                      // the generation that given is of
	told   map[string]string           // newcomers that are not adopted, by unit: why, as it was told
}

// Look makes the adoption look now.
func (x *Adoption) Look() {
	x.Wake.Set()
}

// adoptLoop keeps leases of what the spec adopts.
func (a *Adopter) adoptLoop(ctx context.Context) {
	for {
		if err := a.AdoptAll(ctx); err != nil && ctx.Err() == nil {
			a.Log.Warn("cannot look for logins and units to adopt", "error", err)
		}
		if _, ok := a.Adoption.Wake.Sleep(ctx, adoptEvery); !ok {
			return
		}
	}
}

// AdoptAll looks once at who is there, and begins and ends leases accordingly.
func (a *Adopter) AdoptAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	want := a.State.Desired()
	if !want.Enforcing() && want.Released == nil {
		return nil // Nothing is done on a node that only observes, and nothing undone.
	}
	a.Adoption.mu.Lock()
	defer a.Adoption.mu.Unlock()
	lacks := map[string]api.Condition{}
	logins, err := a.loginsNow(ctx, want, lacks)
	if err != nil {
		return err
	}
	here := a.newcomers(ctx, want, logins, lacks)
	a.Policy.GuardUnits(here)
	var held []lease.Lease
	for _, l := range a.Table.Live() {
		if l.Origin == lease.OriginLogin || l.Origin == lease.OriginUnit {
			held = append(held, l)
		}
	}
	plan := lease.Adopt(here, held)
	for _, id := range slices.Sorted(maps.Keys(plan.End)) {
		a.endAdopted(ctx, id, plan.End[id])
	}
	held = slices.DeleteFunc(held, func(l lease.Lease) bool { _, ended := plan.End[l.ID]; return ended })
	plan = lease.Adopt(here, held)
	for unit, why := range plan.Disputed {
		lacks[unit] = api.Condition{Message: why, Hint: "make the user a member of one tenant that adopts logins"}
	}
	a.beginDue(ctx, want, here, held, plan.Begin, lacks)
	a.tellLacks(lacks)
	return a.limitLogins(ctx, want, logins)
}

// beginDue begins the leases that are due.
func (a *Adopter) beginDue(ctx context.Context, want *state.Desired, here []lease.Newcomer, held []lease.Lease, due []lease.Newcomer, lacks map[string]api.Condition) {
	x := &a.Adoption
	if x.by != want.Generation {
		x.given, x.by = nil, want.Generation
	}
	given := map[string]string{}
	for i := range here {
		n := &here[i]
		if j := slices.IndexFunc(held, func(l lease.Lease) bool { return n.Same(&l) }); j >= 0 {
			given[a.newcomerKey(n)] = held[j].ID
		} else if id, had := x.given[a.newcomerKey(n)]; had {
			given[a.newcomerKey(n)] = id
		}
	}
	x.given = given
	for i := range due {
		n := &due[i]
		if id, had := x.given[a.newcomerKey(n)]; had {
			if _, live := a.Table.Get(id); !live {
				lacks[n.Unit] = api.Condition{Tenant: n.Claims[0].Tenant, Message: "lease " + id + " of " + n.What() + " was ended", Hint: "they get another one when they log in anew, when the unit is started anew, or with the next apply"}
			}
			continue
		}
		id, err := a.beginAdopted(ctx, n)
		if err != nil {
			lacks[n.Unit] = api.Condition{
				Tenant: n.Claims[0].Tenant, Message: fmt.Sprintf("%s have no lease of %s: %v", n.What(), n.Claims[0].Grant, err),
				Hint: "they can open no managed GPU; it is tried again when there is room",
			}
			continue
		}
		x.given[a.newcomerKey(n)] = id
	}
}

// newcomerKey tells a newcomer from the one that had its place before: a unit that is started anew has the same path and
// another cgroup.
func (a *Adopter) newcomerKey(n *lease.Newcomer) string {
	key := n.Unit + " " + n.Cgroup
	if h, err := a.Hierarchy(); err == nil {
		if fi, err := os.Stat(h.Dir(n.Cgroup)); err == nil {
			if st, ok := fi.Sys().(*syscall.Stat_t); ok {
				key += fmt.Sprintf(" %d", st.Ino)
			}
		}
	}
	return key
}

// loginsNow lists who is logged in, when anybody needs to know.
func (a *Adopter) loginsNow(ctx context.Context, want *state.Desired, lacks map[string]api.Condition) ([]cgroup.Login, error) {
	needed := want.Spec != nil && slices.ContainsFunc(want.Spec.Tenants, func(t api.TenantSpec) bool {
		return t.Adopt != nil && t.Adopt.Logins != "" || t.PerLogin != nil
	})
	some := slices.ContainsFunc(a.Table.Live(), func(l lease.Lease) bool { return l.Origin == lease.OriginLogin })
	if a.Books == nil || !needed && !some {
		if needed {
			lacks["logins"] = api.Condition{Message: "logins are not adopted on " + devicepolicy.AdapterText(a.Port.Info()), Hint: "run gpushared as root on a host with cgroup v2"}
		}
		return nil, nil
	}
	logins, err := a.Books.Logins(ctx)
	if errors.Is(err, cgroup.ErrNoLogins) {
		lacks["logins"] = api.Condition{Message: "logins are not adopted: nobody tells who is logged in", Hint: "systemd-logind with libpam-systemd does"}
		return nil, nil
	}
	// Root's own are nobody's.
	return slices.DeleteFunc(logins, func(l cgroup.Login) bool { return l.UID == 0 }), err
}

// newcomers is all that a tenant may want, with the claims on it.
func (a *Adopter) newcomers(ctx context.Context, want *state.Desired, logins []cgroup.Login, lacks map[string]api.Condition) []lease.Newcomer {
	var here []lease.Newcomer
	a.forgetGroups(logins)
	for _, l := range logins {
		n := lease.Newcomer{Origin: lease.OriginLogin, Name: l.Name, UID: l.UID, Unit: l.Unit, Cgroup: l.Cgroup}
		if want.Enforcing() {
			tenants, sure := a.tenantsOfLogin(ctx, want, &l, func(t *api.TenantSpec) bool { return t.Adopt != nil && t.Adopt.Logins != "" })
			for _, t := range tenants {
				n.Claims = append(n.Claims, lease.Key{Tenant: t.Name, Grant: t.Adopt.Logins})
			}
			n.Unsure = !sure
		}
		here = append(here, n)
	}
	return append(here, a.unitsNow(ctx, want, lacks)...)
}

// unitsNow is the units that run and that a tenant wants, and those that have a lease because one wanted them.
func (a *Adopter) unitsNow(ctx context.Context, want *state.Desired, lacks map[string]api.Condition) []lease.Newcomer {
	claims := map[string][]lease.Key{}
	for _, l := range a.Table.Live() {
		if l.Origin == lease.OriginUnit {
			claims[l.Unit] = nil
		}
	}
	if want.Enforcing() {
		for i := range want.Spec.Tenants {
			if t := &want.Spec.Tenants[i]; t.Adopt != nil {
				for unit, grant := range t.Adopt.Units {
					claims[unit] = append(claims[unit], lease.Key{Tenant: t.Name, Grant: grant})
				}
			}
		}
	}
	var here []lease.Newcomer
	for _, unit := range slices.Sorted(maps.Keys(claims)) {
		if a.Books == nil {
			lacks[unit] = api.Condition{Message: "unit " + unit + " is not adopted on " + devicepolicy.AdapterText(a.Port.Info()), Hint: "systemd knows units"}
			continue
		}
		cg, err := a.Books.UnitCgroup(ctx, unit)
		if err != nil {
			if !errors.Is(err, cgroup.ErrNotFound) {
				lacks[unit] = api.Condition{Message: "unit " + unit + " is not adopted: " + err.Error(), Hint: "systemd knows units"}
			}
			continue
		}
		here = append(here, lease.Newcomer{Origin: lease.OriginUnit, Name: unit, Unit: unit, Cgroup: cg, Claims: claims[unit]})
	}
	return here
}

// tenantsOfLogin is the tenants that a user is a member of, of those that matter. A user's groups are asked for once, at the
// login, as the login itself has them: who joins a group later has it after the next login. sure is false when a name is
// not known yet.
func (a *Adopter) tenantsOfLogin(ctx context.Context, want *state.Desired, l *cgroup.Login, matters func(*api.TenantSpec) bool) (out []*api.TenantSpec, sure bool) {
	sure = true
	roster := a.Identities.P.Load()
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		j := slices.IndexFunc(roster.Tenants, func(m server.TenantMembers) bool { return m.Name == t.Name })
		if j < 0 || !matters(t) {
			continue
		}
		m := &roster.Tenants[j]
		if slices.Contains(m.UIDs, l.UID) {
			out = append(out, t)
			continue
		}
		if len(m.GIDs) > 0 {
			gids, known := a.groupsOf(ctx, l)
			if slices.ContainsFunc(gids, func(gid int) bool { return slices.Contains(m.GIDs, gid) }) {
				out = append(out, t)
				continue
			}
			sure = sure && known
		}
		if slices.ContainsFunc(roster.Unknown, func(u server.UnknownMember) bool { return u.Tenant == t.Name && u.Unasked }) {
			sure = false
		}
	}
	return out, sure
}

func (a *Adopter) groupsOf(ctx context.Context, l *cgroup.Login) (gids []int, known bool) {
	x := &a.Adoption
	if g, ok := x.groups[l.UID]; ok {
		return g, true
	}
	gids, err := a.Identities.Names.GroupsOf(ctx, l.Name)
	if err != nil {
		a.Log.Warn("cannot tell a login's groups, it is tried again", "user", l.Name, "error", err)
		return nil, false
	}
	if x.groups == nil {
		x.groups = map[int][]int{}
	}
	x.groups[l.UID] = gids
	return gids, true
}

// forgetGroups drops what is known of users who are not logged in any more.
func (a *Adopter) forgetGroups(logins []cgroup.Login) {
	for uid := range a.Adoption.groups {
		if !slices.ContainsFunc(logins, func(l cgroup.Login) bool { return l.UID == uid }) {
			delete(a.Adoption.groups, uid)
		}
	}
}

// beginAdopted takes a newcomer into its grant, if there is a place now.
func (a *Adopter) beginAdopted(ctx context.Context, n *lease.Newcomer) (string, error) {
	h, err := a.Hierarchy()
	if err != nil {
		return "", err
	}
	members, err := h.Processes(n.Cgroup)
	if err != nil {
		return "", err
	}
	if len(members) == 0 {
		return "", fmt.Errorf("no process is there yet")
	}
	r := lease.Request{
		Tenant: n.Claims[0].Tenant, Grant: n.Claims[0].Grant, Admin: true, Command: []string{n.What()},
		User: n.Name, UID: n.UID, Origin: n.Origin, Cgroup: n.Cgroup, Unit: n.Unit, AtOnce: true,
	}
	if n.Origin == lease.OriginUnit {
		r.User = ""
	}
	ticket, err := a.Table.Submit(r)
	if err != nil {
		return "", err
	}
	l, _, err := a.Table.Start(ctx, ticket.ID(), lease.Process(members[0]))
	if err != nil {
		ticket.Cancel()
		return "", err
	}
	a.Leases.WatchLease(l.ID)
	a.Events.Publish(l.Event("lease.started", fmt.Sprintf("%s were taken into %s of %s", n.What(), l.Terms.Spec.Name, l.Terms.Tenant)))
	a.Kick() // What it may open is granted now.
	return l.ID, nil
}

// endAdopted lets a newcomer go. Its processes go on, and no managed GPU can be opened by them anew.
func (a *Adopter) endAdopted(ctx context.Context, id, why string) {
	l, ok := a.Table.Get(id)
	if !ok {
		return
	}
	if err := a.Table.Ended(ctx, id, why); err != nil {
		a.Log.Error("cannot end a lease", "lease", id, "error", err)
		return
	}
	maps.DeleteFunc(a.Adoption.given, func(_, had string) bool { return had == id })
	a.Events.Publish(l.Event("lease.ended", why))
	a.Kick()
}

// tellLacks makes conditions of what is not adopted, and an event of each that is new.
func (a *Adopter) tellLacks(lacks map[string]api.Condition) {
	x := &a.Adoption
	for about, c := range lacks {
		if x.told[about] != c.Message {
			a.Events.Publish(api.Event{Kind: "adopt.refused", Tenant: c.Tenant, Message: c.Message})
			a.Log.Warn("not adopted", "what", about, "why", c.Message)
		}
	}
	x.told = map[string]string{}
	for about, c := range lacks {
		x.told[about] = c.Message
	}
	a.Conditions.Replace("not-adopted", lacks)
	a.Touch()
}
