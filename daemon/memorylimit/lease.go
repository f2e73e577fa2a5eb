package memorylimit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/daemon/stop"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// leaseTimeout bounds the limits of one lease. A GPU that does not answer is excluded by then.
const leaseTimeout = 5 * time.Second

// Prepare refuses a lease whose grant accepts only a hard limit, if the driver does not limit the slice of the grant. It is
// called before the process of the lease is moved: a refusal later would end it.
func (m *Limits) Prepare(ctx context.Context, l *lease.Lease) error {
	if !m.requiresHard(l) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	for _, id := range l.Place.GPUs {
		a := m.abilityOf(id)
		if s := m.sliceOf(l); s != "" && !(a.known && a.reason != "") {
			if err := m.limit(ctx, id, &item{cgroup: s, hard: new(limitOn(l, id)), tenant: l.Terms.Tenant}); err != nil {
				a = ability{known: true, reason: reasonOf(err)}
			}
		}
		if a.known && a.reason != "" {
			return refusal(l, a.reason)
		}
	}
	return nil
}

// Begin limits the cgroup of a lease before its command starts, or when it is attached. If the driver cannot, another backend
// limits the lease; a lease whose grant accepts only a hard limit is refused.
func (m *Limits) Begin(ctx context.Context, l *lease.Lease, cg string) error {
	if !m.State.Desired().Enforcing() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	for _, id := range l.Place.GPUs {
		a, limit := m.abilityOf(id), limitOn(l, id)
		if limit == 0 || cg == "" || m.ofOthers(l, cg) || a.known && a.reason != "" {
			continue
		}
		var list []item
		if s := m.sliceOf(l); s != "" {
			list = append(list, item{cgroup: s, hard: &limit, tenant: l.Terms.Tenant})
		}
		for _, it := range append(list, leaseItem(l, cg, limit)) {
			if r, ok := m.get(target{id, it.cgroup}); it.lease == "" && ok && r.reason == "" && r.hard == limit {
				continue // Converge verifies the slices.
			}
			if err := m.limit(ctx, id, &it); err != nil {
				m.Log.Warn("cannot limit the GPU memory of a cgroup", "cgroup", it.cgroup, "lease", l.ID, "gpu", id, "error", err)
			}
		}
	}
	begun := *l
	begun.Isolation.Cgroup = cg
	if c := m.Choice(&begun); m.requiresHard(l) && !c.Hard {
		return refusal(l, c.Reason)
	}
	return nil
}

// ofOthers reports whether processes of others may be in a cgroup of a lease, whose allocations a limit would refuse: it is root's, and
// another engine than root named it.
func (m *Limits) ofOthers(l *lease.Lease, cg string) bool {
	if stop.NamedByRoot(l) || m.Hierarchy == nil {
		return false
	}
	var st unix.Stat_t
	return unix.Stat(m.Hierarchy.Dir(cg), &st) != nil || st.Uid == 0
}

func (m *Limits) requiresHard(l *lease.Lease) bool {
	return m.State.Desired().Enforcing() && l.Terms.RequiresHardMemory()
}

func refusal(l *lease.Lease, reason string) error {
	return &api.Error{
		Kind:    api.KindUnavailable,
		Message: fmt.Sprintf("cannot limit the GPU memory of grant %s of %s: %s", l.Terms.Spec.Name, l.Terms.Tenant, reason),
		Hint:    "the grant says accept: hard; with accept: best-effort it would start with a weaker limit",
	}
}

// limit brings one limit into force and records it.
func (m *Limits) limit(ctx context.Context, id gpu.UUID, it *item) error {
	_, _, err := m.ensure(ctx, id, it)
	m.record(id, it, err)
	return err
}

// sliceOf is the cgroup of the slice of a lease's grant; empty if the lease is not in it.
func (m *Limits) sliceOf(l *lease.Lease) string {
	node := m.Observer.Last()
	if node == nil || l.InPlace() && l.Origin != lease.OriginContainer {
		return ""
	}
	name := state.SliceOf(l)
	if i := slices.IndexFunc(node.Slices, func(s cgroup.SliceState) bool { return s.Name == name }); i >= 0 {
		return node.Slices[i].Path
	}
	return ""
}

// End removes the limits of a lease's cgroup, which may continue to exist. What fails is tried again by Converge.
func (m *Limits) End(ctx context.Context, l *lease.Lease) {
	for _, cg := range cgroupsOf(l) {
		m.end(ctx, l, cg)
	}
}

// end removes the limit of one of the cgroups of a lease.
func (m *Limits) end(ctx context.Context, l *lease.Lease, cg string) {
	if m.Hierarchy == nil || !m.Hierarchy.Exists(cg) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	for _, id := range l.Place.GPUs {
		a := m.abilityOf(id)
		if _, known := m.get(target{id, cg}); limitOn(l, id) == 0 || !known && a.known && a.reason != "" {
			continue
		}
		it := item{cgroup: cg, tenant: l.Terms.Tenant, lease: l.ID}
		if err := m.limit(ctx, id, &it); err != nil && m.Hierarchy.Exists(cg) {
			m.Log.Warn("cannot remove the GPU-memory limit of a lease that ended", "lease", l.ID, "gpu", id, "error", err)
		}
	}
}

// Choice returns what enforces the GPU-memory limit of a lease, by what was read back.
func (m *Limits) Choice(l *lease.Lease) quota.MemoryChoice {
	in := quota.MemoryBackendInput{
		MIG:       l.Terms.Kind() == api.ModeMIG,
		Split:     l.Place.Compute != "",
		Enforcing: m.State.Desired().Enforcing(),
		MPS:       l.Terms.Kind() == api.ModeMPS && !l.InPlace(),
		Overuse:   m.Overuse(l),
		CanFreeze: l.Isolation.Freeze && !l.InPlace(),
	}
	if in.MIG || len(l.Place.GPUs) != 1 {
		return quota.ChooseMemoryBackend(in)
	}
	if l.Place.Instance != nil {
		in.Driver.Reason = inInstance
		return quota.ChooseMemoryBackend(in)
	}
	cg, n := m.present(l)
	if n > 1 {
		in.Driver.Reason = fmt.Sprintf("it has %d cgroups, and the driver limits each alone", n)
		return quota.ChooseMemoryBackend(in)
	}
	if m.ofOthers(l, cg) {
		in.Driver.Reason = "its cgroup is root's, and not root named it: processes of others may be there, which it would limit"
		return quota.ChooseMemoryBackend(in)
	}
	id := l.Place.GPUs[0]
	r, ok := m.get(target{id, cg})
	switch a := m.abilityOf(id); {
	case ok && r.reason == "" && r.hard == l.Memory():
		in.Driver.ReadBack = true
		in.Driver.Together = m.together(l)
		if !in.Driver.Together && l.Own.Memory == 0 { // What it has of its own is in no sum with others.
			in.Others = m.others(l)
		}
	case a.known && a.reason != "":
		in.Driver.Reason = a.reason
	case l.Isolation.Cgroup == "":
		in.Driver.Reason = "its processes have no cgroup of their own"
	case ok && r.reason != "":
		in.Driver.Reason = r.reason
	default:
		in.Driver.Reason = m.whyUnread(id)
	}
	return quota.ChooseMemoryBackend(in)
}

// present is the cgroup of a lease whose limit counts, and how many it has. Those of pods that ended have no memory.
func (m *Limits) present(l *lease.Lease) (cg string, n int) {
	if len(l.Cgroups()) < 2 || m.Hierarchy == nil {
		return l.Isolation.Cgroup, 1
	}
	switch left := l.CgroupsLeft(m.Hierarchy.Exists); len(left) {
	case 0:
		return l.Isolation.Cgroup, 1
	case 1:
		return left[0], 1
	default:
		return l.Isolation.Cgroup, len(left)
	}
}

// Describe sets what enforces the GPU-memory limit of a lease.
func (m *Limits) Describe(l *lease.Lease, out *api.LeaseMemory) {
	c := m.Choice(l)
	out.Backend, out.Hard, out.Reason, out.Advisory = string(c.Backend), c.Hard, c.Reason, c.Advisory()
}

// inInstance is why the driver limits no share of an instance: it accepts limits of whole GPUs only. Source: NVML of R615.
const inInstance = "the driver limits the memory of whole GPUs only"

// whyUnread returns why no limit of a GPU was read back.
func (m *Limits) whyUnread(id gpu.UUID) string {
	node := m.Observer.Last()
	if node == nil || node.DriverErr != nil {
		return "the driver does not answer"
	}
	if g, ok := node.GPU(id); !ok || g.Err != nil {
		return "the GPU does not answer"
	}
	return "it was not read back yet"
}

// together reports whether the limit of the grant's slice was read back and also holds for this lease.
func (m *Limits) together(l *lease.Lease) bool {
	s := m.sliceOf(l)
	if s == "" || !cgroup.Below(l.Isolation.Cgroup, s) {
		return false
	}
	r, ok := m.get(target{l.Place.GPUs[0], s})
	return ok && r.reason == "" && r.dmem
}

// others counts the further leases of the grant on the GPU of a lease.
func (m *Limits) others(l *lease.Lease) int {
	n := 0
	for _, o := range m.Table.Live() {
		if o.ID != l.ID && o.Terms.Key() == l.Terms.Key() && slices.Contains(o.Place.GPUs, l.Place.GPUs[0]) {
			n++
		}
	}
	return n
}

// HardMemory is on which GPUs of the spec in force a limit of GPU memory can be hard.
func (m *Limits) HardMemory() map[gpu.UUID]state.HardMemory {
	known := map[gpu.UUID]state.HardMemory{}
	for id := range m.State.Desired().GPUs {
		known[id] = m.hardMemoryOf(id)
	}
	return known
}

func (m *Limits) hardMemoryOf(id gpu.UUID) state.HardMemory {
	a := m.abilityOf(id)
	return state.HardMemory{Missing: a.reason, ByLease: a.known && !a.together}
}

// Refuse refuses a spec in which a grant accepts only a hard limit, and no GPU that it may use can have one.
func (m *Limits) Refuse(want *state.Desired, node *observe.Node) error {
	v := planner.ProposedView(want, node)
	planner.DescribeHardMemory(&v, m.hardMemoryOf)
	if g, reason := lease.NeverHard(&v); g != nil {
		return &api.Error{
			Kind: api.KindInfeasible,
			Message: fmt.Sprintf(
				"cannot limit the GPU memory of grant %s of %s, which says accept: hard: %s", g.Spec.Name, g.Tenant, reason,
			),
			Hint: "nothing was changed; write accept: best-effort to accept a weaker limit, or use a MIG profile",
		}
	}
	return nil
}
