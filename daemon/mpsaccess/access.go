package mpsaccess

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// Access keeps the sockets of the MPS control daemons. Set the fields before the first use.
type Access struct {
	*report.Reporter
	State       *state.State
	Observer    *observe.Observer
	Table       *lease.Table
	Identities  *server.Identities
	Attribution *attribution.Attribution
	MPS         *mps.Supervisor
	Wake        func() // observes the node again

	blocked blocked
}

// Converge lets the members of tenants and the users of leases reach the sockets, and no other user. corrected reports what was
// changed from outside.
func (a *Access) Converge(ctx context.Context, node *observe.Node, corrected func(tenant, lease, text string)) {
	want := a.State.Desired()
	conditions := map[string]api.Condition{}
	members, live := a.Identities.Table.Load().Tenants, a.Table.Live()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if !want.WantsMPS(id) || g.MPS == nil || g.MPS.Settings == nil {
			continue
		}
		changed, err := a.MPS.Restrict(mps.Whole(id), a.reach(ctx, want, members, live, id))
		for _, text := range changed {
			corrected("", "", fmt.Sprintf("MPS of GPU %d: %s", g.Identity.Index, text))
		}
		if err == nil {
			continue
		}
		c := api.Condition{GPU: string(id), Message: fmt.Sprintf("GPU %d: who reaches its MPS is not as it should be: %v", g.Identity.Index, err), Hint: "correct the cause; it is tried again at every observation"}
		if errors.Is(err, mps.ErrOpen) {
			c.Hint = "set run_dir to a directory on a file system with access control lists, as tmpfs, ext4 and xfs have them"
		}
		conditions[string(id)] = c
	}
	a.Conditions.Replace("mps-access", conditions)
}

// reach returns the members of the tenants that have a grant on the GPU, and the users of its leases.
func (a *Access) reach(ctx context.Context, want *state.Desired, members []server.TenantMembers, live []lease.Lease, id gpu.UUID) mps.Reach {
	var r mps.Reach
	for i := range members {
		if m := &members[i]; hasGrant(want, m.Name, id) {
			r.Users, r.Groups = append(r.Users, m.UIDs...), append(r.Groups, m.GIDs...)
		}
	}
	for i := range live {
		l := &live[i]
		if l.Terms.Kind() != api.ModeMPS || !slices.Contains(l.Place.GPUs, id) {
			continue
		}
		r.Users = append(r.Users, l.UID)
		if l.InPlace() {
			r.Users = append(r.Users, a.usersIn(ctx, l)...)
		}
	}
	r.Users = slices.DeleteFunc(r.Users, func(uid int) bool { return uid == 0 })
	slices.Sort(r.Users)
	r.Users = slices.Compact(r.Users)
	return r
}

// hasGrant reports whether a tenant has a grant of MPS on a GPU.
func hasGrant(want *state.Desired, tenant string, id gpu.UUID) bool {
	t, ok := want.Tenant(tenant)
	return ok && slices.ContainsFunc(t.Grants, func(g api.GrantSpec) bool {
		on := want.Grants[state.GrantKey{Tenant: tenant, Grant: g.Name}]
		return g.Kind() == api.ModeMPS && (g.GPUs == nil || slices.Contains(on, id))
	})
}

// maxUsers is how many users of the processes of one lease are let in.
const maxUsers = 64

// usersIn returns the users of a lease's processes: those of a unit or a container may be others than the lease's.
func (a *Access) usersIn(ctx context.Context, l *lease.Lease) []int {
	processes, err := a.Attribution.PortOf(l).Members(ctx, l.ID)
	if err != nil {
		return nil // It has ended.
	}
	var users []int
	for _, p := range processes {
		uid, err := procfs.EUID(p.PID)
		if err == nil && !slices.Contains(users, int(uid)) && len(users) < maxUsers {
			users = append(users, int(uid))
		}
	}
	return users
}
