package access

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
	"github.com/gpushare/gpushare/mps/control"
)

// Access keeps the sockets of the MPS control daemons. Set the fields before the first use.
type Access struct {
	*report.Reporter
	State       *state.State
	Observer    *observe.Observer
	Table       *lease.Table
	Identities  *server.Identities
	Attribution *attribution.Attribution
	MPS         *control.Supervisor
	Freezer     *Freezer // nil: nothing can be frozen
	Wake        func()   // observes the node again

	blocked blocked
}

// Converge lets the members of tenants and the users of leases reach the sockets, and no other user. corrected reports what was
// changed from outside.
func (a *Access) Converge(ctx context.Context, node *observe.Node, corrected func(tenant, lease, text string)) {
	want, asOf := a.State.Desired(), a.Now()
	conditions := map[string]api.Condition{}
	members, live := a.Identities.Table.Load().Tenants, a.Table.Live()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		for _, d := range desiredOn(want, g) {
			changed, err := a.MPS.Restrict(d, a.reach(ctx, want, members, live, g, d), asOf)
			for _, text := range changed {
				corrected("", "", fmt.Sprintf("MPS of %s: %s", planner.DeviceName(g, d), text))
			}
			if err == nil {
				continue
			}
			c := api.Condition{
				GPU:     string(d.GPU),
				Message: fmt.Sprintf("%s: who reaches its MPS is not as it should be: %v", planner.DeviceName(g, d), err),
				Hint:    "correct the cause; it is tried again at every observation",
			}
			if errors.Is(err, control.ErrOpen) {
				c.Hint = "set run_dir to a directory on a file system with access control lists, as tmpfs, ext4 and xfs have them"
			}
			conditions[fmt.Sprint(d)] = c
		}
	}
	a.Conditions.Replace("mps-access", conditions)
}

// desiredOn returns the GPU and its instances, as far as gpushare has started a control daemon there and runs it.
func desiredOn(want *state.Desired, g *observe.GPU) []mps.Device {
	var out []mps.Device
	for _, m := range g.ControlDaemons() {
		if d := m.Device(); m.Settings != nil && want.Enforcing() && (d.IsInstance() || want.WantsMPS(d.GPU)) {
			out = append(out, d)
		}
	}
	return out
}

// reach returns the members of the tenants that have a grant on the device, and the users of its leases.
func (a *Access) reach(
	ctx context.Context, want *state.Desired, members []server.TenantMembers, live []lease.Lease, g *observe.GPU, d mps.Device,
) control.Reach {
	var r control.Reach
	for i := range members {
		if m := &members[i]; hasGrant(want, m.Name, g, d) {
			r.Users, r.Groups = append(r.Users, m.UIDs...), append(r.Groups, m.GIDs...)
		}
	}
	r.Left = a.Identities.Left(r.Groups)
	for i := range live {
		l := &live[i]
		if l.Terms.Kind() != api.ModeMPS || !isOn(l, d) {
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

// isOn reports whether a lease is on a device.
func isOn(l *lease.Lease, d mps.Device) bool {
	if !slices.Contains(l.Place.GPUs, d.GPU) {
		return false
	}
	if l.Place.Instance == nil {
		return !d.IsInstance()
	}
	return *l.Place.Instance == d.Instance
}

// hasGrant reports whether a tenant has a grant of MPS on a device.
func hasGrant(want *state.Desired, tenant string, g *observe.GPU, d mps.Device) bool {
	t, ok := want.Tenant(tenant)
	return ok && slices.ContainsFunc(t.Grants, func(grant api.GrantSpec) bool {
		on := want.Grants[state.GrantKey{Tenant: tenant, Grant: grant.Name}]
		if grant.Kind() != api.ModeMPS || grant.InInstance() != d.IsInstance() || grant.GPUs != nil && !slices.Contains(on, d.GPU) {
			return false
		}
		return !d.IsInstance() || planner.SharesInstance(want, g, &grant, d.Instance)
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
