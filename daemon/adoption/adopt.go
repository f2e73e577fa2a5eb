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

// adoptInterval is how often logins and units are read without an event: for a place that became free, and on a host
// without a service manager, which sends no events.
const adoptInterval = 5 * time.Second

// Adoption is what was adopted. Logins and units are adopted by the spec alone: no user requests the lease.
type Adoption struct {
	Wake loop.Wake

	mu         locks.Mutex[locks.Adoption] // guards what follows; one pass at a time
	groups     map[int][]int               // uid to groups of users who are logged in, as they were at the login
	hadLease   map[string]string           // candidate to the lease that it has or had: a candidate whose lease was ended gets no other one
	generation uint64                      // of the spec for which hadLease is valid
	reported   map[string]string           // unit to the reason why it is not adopted, as reported last
}

// Recheck wakes the loop.
func (x *Adoption) Recheck() {
	x.Wake.Set()
}

// adoptLoop maintains the leases of what the spec adopts.
func (a *Adopter) adoptLoop(ctx context.Context) {
	for {
		if err := a.AdoptAll(ctx); err != nil && ctx.Err() == nil {
			a.Log.Warn("cannot read logins and units to adopt", "error", err)
		}
		if _, ok := a.Adoption.Wake.Every(ctx, adoptInterval); !ok {
			return
		}
	}
}

// AdoptAll reads logins and units once, and starts and ends leases accordingly.
func (a *Adopter) AdoptAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	want := a.State.Desired()
	if !want.Enforcing() && want.Unmanaged == nil {
		return nil // A node that only observes starts and ends no lease.
	}
	a.Adoption.mu.Lock()
	defer a.Adoption.mu.Unlock()
	notAdopted := map[string]api.Condition{}
	logins, err := a.currentLogins(ctx, want, notAdopted)
	if err != nil {
		return err
	}
	candidates := a.candidates(ctx, want, logins, notAdopted)
	a.Policy.FilterUnits(candidates)
	adopted := a.Table.LiveOnly(func(l *lease.Lease) bool { return l.Origin == lease.OriginLogin || l.Origin == lease.OriginUnit })
	if a.State.Desired() != want { // The leases may have the names of another spec than the candidates: the next pass compares them.
		a.Adoption.Recheck()
		return nil
	}
	plan := lease.PlanAdoption(candidates, adopted)
	for _, id := range slices.Sorted(maps.Keys(plan.End)) {
		a.endAdopted(ctx, id, plan.End[id])
	}
	adopted = slices.DeleteFunc(adopted, func(l lease.Lease) bool { _, ended := plan.End[l.ID]; return ended })
	plan = lease.PlanAdoption(candidates, adopted)
	for unit, why := range plan.Disputed {
		notAdopted[unit] = api.Condition{Message: why, Hint: "make the user a member of one tenant that adopts logins"}
	}
	a.startDue(ctx, want, candidates, adopted, plan.Begin, notAdopted)
	a.reportNotAdopted(notAdopted)
	return a.limitLogins(ctx, want, logins)
}

// startDue starts the leases that are due.
func (a *Adopter) startDue(
	ctx context.Context, want *state.Desired, candidates []lease.AdoptionCandidate, adopted []lease.Lease,
	due []lease.AdoptionCandidate, notAdopted map[string]api.Condition,
) {
	x := &a.Adoption
	if x.generation != want.Generation {
		x.hadLease, x.generation = nil, want.Generation
	}
	hadLease := map[string]string{}
	for i := range candidates {
		n := &candidates[i]
		if j := slices.IndexFunc(adopted, func(l lease.Lease) bool { return n.Matches(&l) }); j >= 0 {
			hadLease[a.candidateKey(n)] = adopted[j].ID
		} else if id, had := x.hadLease[a.candidateKey(n)]; had {
			hadLease[a.candidateKey(n)] = id
		}
	}
	x.hadLease = hadLease
	for i := range due {
		n := &due[i]
		if id, had := x.hadLease[a.candidateKey(n)]; had {
			if _, live := a.Table.Get(id); !live {
				notAdopted[n.Unit] = api.Condition{
					Tenant:  n.Claims[0].Tenant,
					Message: "lease " + id + " of " + n.Description() + " was ended",
					Hint:    "it is adopted again at the next login, when the unit is started again, or at the next apply",
				}
			}
			continue
		}
		id, err := a.startAdopted(ctx, n)
		if err != nil {
			notAdopted[n.Unit] = api.Condition{
				Tenant:  n.Claims[0].Tenant,
				Message: fmt.Sprintf("no lease of grant %s for %s: %v", n.Claims[0].Grant, n.Description(), err),
				Hint:    "they can open no managed GPU; adoption is tried again when there is capacity",
			}
			continue
		}
		x.hadLease[a.candidateKey(n)] = id
	}
}

// candidateKey distinguishes a candidate from an earlier one of the same name: a unit that is started again has the
// same path and another cgroup.
func (a *Adopter) candidateKey(n *lease.AdoptionCandidate) string {
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

// currentLogins lists the users who are logged in, if the spec or a lease needs it.
func (a *Adopter) currentLogins(ctx context.Context, want *state.Desired, notAdopted map[string]api.Condition) ([]cgroup.Login, error) {
	needed := want.Spec != nil && slices.ContainsFunc(want.Spec.Tenants, func(t api.TenantSpec) bool {
		return t.Adopt != nil && t.Adopt.Logins != "" || t.PerLogin != nil
	})
	anyAdopted := len(a.Table.LiveIDs(func(l *lease.Lease) bool { return l.Origin == lease.OriginLogin })) > 0
	if a.Sessions == nil || !needed && !anyAdopted {
		if needed {
			notAdopted["logins"] = api.Condition{
				Message: "logins are not adopted on " + devicepolicy.AdapterText(a.Port.Info()),
				Hint:    "run gpushared as root on a host with cgroup v2",
			}
		}
		return nil, nil
	}
	logins, err := a.Sessions.Logins(ctx)
	if errors.Is(err, cgroup.ErrNoLogins) {
		notAdopted["logins"] = api.Condition{
			Message: "logins are not adopted: no service reports who is logged in",
			Hint:    "install systemd-logind with libpam-systemd",
		}
		return nil, nil
	}
	// Root's logins are not adopted.
	return slices.DeleteFunc(logins, func(l cgroup.Login) bool { return l.UID == 0 }), err
}

// candidates returns all logins and units, with the tenants' claims on them.
func (a *Adopter) candidates(
	ctx context.Context, want *state.Desired, logins []cgroup.Login, notAdopted map[string]api.Condition,
) []lease.AdoptionCandidate {
	var candidates []lease.AdoptionCandidate
	a.forgetGroups(logins)
	for _, l := range logins {
		n := lease.AdoptionCandidate{Origin: lease.OriginLogin, Name: l.Name, UID: l.UID, Unit: l.Unit, Cgroup: l.Cgroup}
		if want.Enforcing() {
			tenants, sure := a.tenantsOfLogin(ctx, want, &l, func(t *api.TenantSpec) bool { return t.Adopt != nil && t.Adopt.Logins != "" })
			for _, t := range tenants {
				if member, trusted := a.Identities.MemberByGroups(l.UID, a.Adoption.groups[l.UID], t.Name); member && !trusted {
					sure = false // A lease that the login has is kept, and it gets no other one.
					continue
				}
				n.Claims = append(n.Claims, lease.Key{Tenant: t.Name, Grant: t.Adopt.Logins})
			}
			n.MembershipUnknown = !sure
		}
		candidates = append(candidates, n)
	}
	return append(candidates, a.unitCandidates(ctx, want, notAdopted)...)
}

// unitCandidates returns the running units that a tenant adopts, and those that have a lease because a tenant adopted
// them.
func (a *Adopter) unitCandidates(ctx context.Context, want *state.Desired, notAdopted map[string]api.Condition) []lease.AdoptionCandidate {
	claims := map[string][]lease.Key{}
	for _, l := range a.Table.LiveOnly(func(l *lease.Lease) bool { return l.Origin == lease.OriginUnit }) {
		claims[l.Unit] = nil
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
	var candidates []lease.AdoptionCandidate
	for _, unit := range slices.Sorted(maps.Keys(claims)) {
		if a.Sessions == nil {
			notAdopted[unit] = api.Condition{
				Message: "unit " + unit + " is not adopted on " + devicepolicy.AdapterText(a.Port.Info()),
				Hint:    "units are adopted only on a host with systemd",
			}
			continue
		}
		cg, err := a.Sessions.UnitCgroup(ctx, unit)
		if err != nil {
			if !errors.Is(err, cgroup.ErrNotFound) {
				notAdopted[unit] = api.Condition{
					Message: "unit " + unit + " is not adopted: " + err.Error(),
					Hint:    "see 'systemctl status " + unit + "'",
				}
			}
			continue
		}
		candidates = append(
			candidates, lease.AdoptionCandidate{Origin: lease.OriginUnit, Name: unit, Unit: unit, Cgroup: cg, Claims: claims[unit]},
		)
	}
	return candidates
}

// tenantsOfLogin returns the relevant tenants that a user is a member of. A user's groups are read once, at the login,
// as the login itself has them: a group that the user joins later counts from the next login, and one that they leave counts no
// more. sure is false if a name is not resolved yet.
func (a *Adopter) tenantsOfLogin(
	ctx context.Context, want *state.Desired, l *cgroup.Login, relevant func(*api.TenantSpec) bool,
) (out []*api.TenantSpec, sure bool) {
	sure = true
	identities := a.Identities.Table.Load()
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		j := slices.IndexFunc(identities.Tenants, func(m server.TenantMembers) bool { return m.Name == t.Name })
		if j < 0 || !relevant(t) {
			continue
		}
		m := &identities.Tenants[j]
		known, gids := true, []int(nil)
		if len(m.GIDs) > 0 && !slices.Contains(m.UIDs, l.UID) {
			gids, known = a.groupsOf(ctx, l)
		}
		if member, _ := a.Identities.MemberByGroups(l.UID, gids, t.Name); member {
			out = append(out, t)
			continue
		}
		sure = sure && known
		if slices.ContainsFunc(identities.Unknown, func(u server.UnknownMember) bool { return u.Tenant == t.Name && u.NoAnswer }) {
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
		a.Log.Warn("cannot read the groups of a login: trying again later", "user", l.Name, "error", err)
		return nil, false
	}
	if x.groups == nil {
		x.groups = map[int][]int{}
	}
	x.groups[l.UID] = gids
	return gids, true
}

// forgetGroups drops the groups of users who are not logged in any more.
func (a *Adopter) forgetGroups(logins []cgroup.Login) {
	for uid := range a.Adoption.groups {
		if !slices.ContainsFunc(logins, func(l cgroup.Login) bool { return l.UID == uid }) {
			delete(a.Adoption.groups, uid)
		}
	}
}

// startAdopted starts a lease of the candidate's grant, if there is a place now.
func (a *Adopter) startAdopted(ctx context.Context, n *lease.AdoptionCandidate) (string, error) {
	h, err := a.Hierarchy()
	if err != nil {
		return "", err
	}
	members, err := h.Processes(n.Cgroup)
	if err != nil {
		return "", err
	}
	if len(members) == 0 {
		return "", fmt.Errorf("it has no process yet")
	}
	r := lease.Request{
		Tenant: n.Claims[0].Tenant, Grant: n.Claims[0].Grant, Admin: true, Command: []string{n.Description()},
		User: n.Name, UID: n.UID, Origin: n.Origin, Cgroup: n.Cgroup, Unit: n.Unit, Immediate: true,
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
	a.Events.Publish(
		l.Event("lease.started", fmt.Sprintf("adopted %s into grant %s of tenant %s", n.Description(), l.Terms.Spec.Name, l.Terms.Tenant)),
	)
	a.Wake() // The converge loop grants the devices of the lease.
	return l.ID, nil
}

// endAdopted ends the lease of a candidate. Its processes continue, and can open no managed GPU from now on.
func (a *Adopter) endAdopted(ctx context.Context, id, why string) {
	l, ok := a.Table.Get(id)
	if !ok {
		return
	}
	if err := a.Table.Ended(ctx, id, why); err != nil {
		a.Log.Error("cannot end a lease", "lease", id, "error", err)
		return
	}
	maps.DeleteFunc(a.Adoption.hadLease, func(_, had string) bool { return had == id })
	a.Events.Publish(l.Event("lease.ended", why))
	a.Wake()
}

// reportNotAdopted sets a condition for each candidate that is not adopted, and publishes an event for each new one.
func (a *Adopter) reportNotAdopted(notAdopted map[string]api.Condition) {
	x := &a.Adoption
	for about, c := range notAdopted {
		if x.reported[about] != c.Message {
			a.Events.Publish(api.Event{Kind: "adopt.refused", Tenant: c.Tenant, Message: c.Message})
			a.Log.Warn("cannot adopt", "candidate", about, "reason", c.Message)
		}
	}
	x.reported = map[string]string{}
	for about, c := range notAdopted {
		x.reported[about] = c.Message
	}
	a.Conditions.Replace("not-adopted", notAdopted)
	a.Invalidate()
}
