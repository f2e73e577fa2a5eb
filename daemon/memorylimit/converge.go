package memorylimit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

const (
	// readInterval is the minimum time between two readings of all limits: many leases may start at once and wake the loop.
	readInterval = time.Second
	// retryInterval is the time after which a driver that limited no cgroup is tried again. A new spec also tries it.
	retryInterval = 10 * time.Minute
	// convergeTimeout bounds one pass. A GPU that does not answer delays no other.
	convergeTimeout = 10 * time.Second
)

// Converge verifies the limits of all slices and leases, and sets those that are not as desired. corrected is called for
// each that was changed from outside. Twice in a row it writes nothing the second time.
func (m *Limits) Converge(ctx context.Context, node *observe.Node, corrected func(tenant, lease, text string)) {
	want := m.State.Desired()
	if !want.Enforcing() || node.DriverErr != nil || node.SlicesErr != nil || m.Hierarchy == nil || lacks(node) {
		m.forget()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, convergeTimeout)
	defer cancel()
	all, again := m.due(want)
	items := m.items(want, node)
	var running sync.WaitGroup
	for id, list := range items {
		running.Go(func() {
			for i := range list {
				if a := m.abilityOf(id); a.known && a.reason != "" && !again {
					return // Each try is a write that fails.
				}
				m.verify(ctx, id, &list[i], all, corrected)
			}
		})
	}
	running.Wait()
	m.updateConditions(want, items)
}

// forget drops what was read back when nothing is enforced or read any more.
func (m *Limits) forget() {
	m.mu.Lock()
	m.swept, m.known = 0, nil
	m.mu.Unlock()
	m.Conditions.Replace("gpu-memory", nil)
}

// due reports whether all limits are read now, and not only those that are new, and whether a driver that limited no cgroup is
// tried again.
func (m *Limits) due(want *state.Desired) (all, again bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Now()
	passed := func(since time.Time, d time.Duration) bool { return now.Sub(since) >= d || now.Before(since) }
	all = m.swept != want.Generation+1 || passed(m.checked, readInterval)
	if again = m.swept != want.Generation+1 || passed(m.tried, retryInterval); again {
		m.tried = now
	}
	if all {
		m.checked = now
	}
	return all, again
}

// verify brings one limit into force and records it.
func (m *Limits) verify(ctx context.Context, id gpu.UUID, it *item, all bool, corrected func(tenant, lease, text string)) {
	before, known := m.get(target{id, it.cgroup})
	inForce := known && before.reason == "" && it.hard != nil && before.hard == *it.hard
	if inForce && !all {
		// A reload of the service manager disables the controller, and with it the limit.
		if wrote, _ := m.Hierarchy.EnableController(it.cgroup, cgroup.DmemController); !wrote {
			return
		}
	}
	was, wrote, err := m.ensure(ctx, id, it)
	if err != nil && !m.Hierarchy.Exists(it.cgroup) {
		m.drop(target{id, it.cgroup}) // It was removed meanwhile, and its limits with it.
		return
	}
	m.record(id, it, err)
	if wrote && err == nil && inForce {
		corrected(it.tenant, it.lease, fmt.Sprintf("the GPU-memory limit of %s: %s → %s", it.what, limitText(it.hard), limitText(was)))
	}
	if err != nil && (!known || before.reason != reasonOf(err)) {
		m.Log.Warn("cannot limit the GPU memory of a cgroup", "cgroup", it.cgroup, "gpu", id, "error", err)
	}
}

func (m *Limits) drop(at target) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, at)
}

// items lists the limits by GPU: for each GPU that leases share, the slices of grants, then the leases. Limits of
// former grants and leases are listed to be removed.
func (m *Limits) items(want *state.Desired, node *observe.Node) map[gpu.UUID][]item {
	busy := map[gpu.UUID]bool{}
	if ch := m.State.Changing(); ch != nil {
		busy = ch.GPUs
	}
	live := m.Table.Live()
	out := map[gpu.UUID][]item{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if !want.Manages(id) || busy[id] || g.Err != nil || g.MIG.Current {
			continue
		}
		if list := m.desired(want, node, g, live); len(list) > 0 {
			out[id] = list
		}
	}
	m.addFormer(want, node, busy, out)
	return out
}

// desired lists the limits that one GPU should have.
func (m *Limits) desired(want *state.Desired, node *observe.Node, g *observe.GPU, live []lease.Lease) []item {
	id := g.Identity.UUID
	mode := want.Mode(id)
	if mode != api.ModeTimeslice && mode != api.ModeMPS {
		return nil
	}
	limits, former := grantLimits(want, id, live), state.FormerSlices(want, live)
	var out []item
	for i := range node.Slices {
		s := &node.Slices[i]
		key := state.GrantOfSlice(former, s.Name)
		limit := limits[lease.Key(key)]
		if s.Path != "" && s.Name.Grant != "" && limit > 0 {
			out = append(out, item{cgroup: s.Path, hard: &limit, tenant: key.Tenant, what: "the slice of " + s.Name.String()})
		}
	}
	for i := range live {
		l := &live[i]
		limit := limitOn(l, id)
		if limit == 0 || l.Isolation.Cgroup == "" {
			continue
		}
		cgroups := l.Cgroups()
		if !slices.Contains(cgroups, l.Isolation.Cgroup) {
			cgroups = append(cgroups, l.Isolation.Cgroup)
		}
		for _, cg := range cgroups {
			if !m.ofOthers(l, cg) {
				out = append(out, leaseItem(l, cg, limit))
			}
		}
	}
	return out
}

// grantLimits returns the GPU memory of each grant on one GPU: what its leases have there, else what the spec says.
func grantLimits(want *state.Desired, id gpu.UUID, live []lease.Lease) map[lease.Key]uint64 {
	out := map[lease.Key]uint64{}
	for i := range live {
		if live[i].Own.Memory > 0 {
			continue // It is not in the slice, and its amount is not of the leases there.
		}
		key := live[i].Terms.Key()
		out[key] = max(out[key], limitOn(&live[i], id))
	}
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		for j := range t.Grants {
			s := &t.Grants[j]
			g := lease.Grant{Tenant: t.Name, Spec: *s}
			if out[g.Key()] == 0 && s.Kind() == want.Mode(id) &&
				(s.GPUs == nil || slices.Contains(want.Grants[state.GrantKey{Tenant: t.Name, Grant: s.Name}], id)) {
				out[g.Key()] = state.GrantMemory(s)
			}
		}
	}
	return out
}

// limitOn is the GPU memory of a lease on a GPU, of its own or of its grant; 0 if it has no limit there that the driver could keep.
func limitOn(l *lease.Lease, id gpu.UUID) uint64 {
	if l.Place.Instance != nil || !slices.Contains(l.Place.GPUs, id) {
		return 0
	}
	return l.Memory()
}

func leaseItem(l *lease.Lease, cg string, limit uint64) item {
	return item{cgroup: cg, hard: &limit, tenant: l.Terms.Tenant, lease: l.ID, what: "lease " + l.ID}
}

// addFormer adds the limits that exist but are no longer desired: those that were set, and once for each spec those on any
// slice of gpushare.
func (m *Limits) addFormer(want *state.Desired, node *observe.Node, busy map[gpu.UUID]bool, items map[gpu.UUID][]item) {
	former := map[target]item{}
	m.mu.Lock()
	for at, r := range m.known {
		former[at] = item{cgroup: at.cgroup, tenant: r.tenant, lease: r.lease, what: "cgroup " + at.cgroup}
	}
	sweep := m.swept != want.Generation+1
	m.swept = want.Generation + 1
	m.mu.Unlock()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if id := g.Identity.UUID; sweep && want.Manages(id) && !g.MIG.Current && g.Err == nil {
			for j := range node.Slices {
				if s := &node.Slices[j]; s.Name.Grant != "" && s.Path != "" {
					former[target{id, s.Path}] = item{cgroup: s.Path, tenant: s.Name.Tenant, what: "the slice of " + s.Name.String()}
				}
			}
		}
	}
	maps.DeleteFunc(former, func(at target, _ item) bool { return busy[at.gpu] })
	for id, list := range items {
		for i := range list {
			delete(former, target{id, list[i].cgroup})
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(former), func(a, b target) int { return cmp.Compare(a.cgroup, b.cgroup) }) {
		g, ok := node.GPU(at.gpu)
		if !ok || g.Err != nil || g.MIG.Current || !m.Hierarchy.Exists(at.cgroup) {
			m.drop(at)
			continue
		}
		items[at.gpu] = append(items[at.gpu], former[at])
	}
}

// updateConditions reports the limits that a driver that has them does not keep, and hard limits that are not hard.
func (m *Limits) updateConditions(want *state.Desired, items map[gpu.UUID][]item) {
	out := map[string]api.Condition{}
	for id, list := range items {
		a := m.abilityOf(id)
		for i := range list {
			it := &list[i]
			if r, ok := m.get(target{id, it.cgroup}); ok && r.reason != "" && a.known && a.reason == "" {
				out[string(id)+it.cgroup] = api.Condition{
					GPU:     string(id),
					Tenant:  it.tenant,
					Message: fmt.Sprintf("the driver does not limit the GPU memory of %s: %s", it.what, r.reason),
					Hint:    "it is tried again; 'gpushare explain' shows what limits it meanwhile",
				}
			}
		}
	}
	live := m.Table.Live()
	for i := range live {
		l := &live[i]
		if !l.Terms.RequiresHardMemory() || l.Waits() {
			continue // Without a process nothing is to be limited.
		}
		if c := m.Choice(l); !c.Hard {
			out[l.ID] = api.Condition{
				Tenant: l.Terms.Tenant,
				Message: fmt.Sprintf(
					"the GPU-memory limit of lease %s of %s is not hard, though its grant says accept: hard: %s", l.ID, l.Terms.Key(),
					c.Reason,
				),
				Hint: "stop the lease with 'gpushare lease stop " + l.ID + "', or write accept: best-effort",
			}
		}
	}
	m.Conditions.Replace("gpu-memory", out)
}
