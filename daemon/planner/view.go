package planner

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// View is the current input of the lease table.
func View(s *state.State, node *observe.Node, now time.Time) lease.View {
	want, closed := s.Desired(), Closures(s, node, now)
	v := ViewOf(want, node, closed, func(id gpu.UUID, in *gpu.Instance) bool { return want.Enforcing() && !s.ManagesInstance(id, in) })
	for _, g := range state.MissingGPUs(want, node) {
		closePlaces(&g, closed)
		v.GPUs = append(v.GPUs, g)
	}
	v.Maintenance = closed.At(store.Where{}).Text()
	numberInstances(s, &v)
	describeNoProcess(s.InNoProcess(), &v)
	clients := s.MPSClients()
	for i := range v.GPUs {
		g := &v.GPUs[i]
		g.Clients = clients[g.UUID]
	}
	DescribeHardMemory(&v, s.HardMemory)
	return v
}

// DescribeHardMemory adds on which GPUs a limit of GPU memory can be hard.
func DescribeHardMemory(v *lease.View, of func(gpu.UUID) state.HardMemory) {
	for i := range v.GPUs {
		g := &v.GPUs[i]
		hard := of(g.UUID)
		g.NoHardMemory, g.HardByLease = hard.Missing, hard.ByLease
	}
}

// describeNoProcess adds the memory that leases cannot get, because it is used and in no process.
func describeNoProcess(bytes map[store.Where]uint64, v *lease.View) {
	for i := range v.GPUs {
		g := &v.GPUs[i]
		g.InNoProcess = bytes[store.Where{GPU: g.UUID}]
		for j := range g.Instances {
			in := &g.Instances[j]
			in.InNoProcess = bytes[store.Where{GPU: g.UUID, Instance: in.Placement}]
		}
	}
}

// numberInstances adds the generations of instances, and marks the GPUs that are closed only for a short change.
func numberInstances(s *state.State, v *lease.View) {
	st, ch := s.Stored(), s.Changing()
	for i := range v.GPUs {
		g := &v.GPUs[i]
		a := st.Achieved[g.UUID]
		for j := range g.Instances {
			g.Instances[j].Generation = state.InstanceGeneration(&a, g.Instances[j].Placement)
		}
		g.ReopensSoon = ch != nil && ch.Brief && ch.GPUs[g.UUID]
	}
}

// ProposedView is the input that the lease table would have with this spec, if all GPUs took leases.
func ProposedView(d *state.Desired, n *observe.Node) lease.View {
	return ViewOf(d, n, unanswered(n), func(gpu.UUID, *gpu.Instance) bool { return false })
}

// ViewOf is the input of the lease table. closed are the places that take no lease now.
func ViewOf(d *state.Desired, n *observe.Node, closed closing.Closures, foreign func(gpu.UUID, *gpu.Instance) bool) lease.View {
	v := lease.View{Generation: d.Generation, Observing: !d.Enforcing(), StatusVisible: d.StatusVisible() == api.StatusVisibleAll}
	if n.DriverErr != nil {
		v.DriverUnavailable = n.DriverErr.Error()
	}
	for i := range n.GPUs {
		if e := d.GPUs[n.GPUs[i].Identity.UUID]; e != nil {
			v.GPUs = append(v.GPUs, gpuView(d, e, &n.GPUs[i], foreign))
		}
	}
	for i := range v.GPUs {
		closePlaces(&v.GPUs[i], closed)
	}
	if d.Spec == nil {
		return v
	}
	if p := d.Spec.Node.PerUser; p != nil {
		if p.Leases != nil {
			v.PerUser.Leases = *p.Leases
		}
		if p.GPUMemory != nil {
			v.PerUser.Memory = uint64(*p.GPUMemory)
		}
	}
	v.Queue = lease.Queue{HalfLife: time.Duration(api.DefaultHalfLife), Waiting: api.DefaultQueueWaiting}
	if q := d.Spec.Node.Queue; q != nil {
		if q.HalfLife != nil {
			v.Queue.HalfLife = time.Duration(*q.HalfLife)
		}
		if q.Waiting != nil {
			v.Queue.Waiting = *q.Waiting
		}
	}
	for i := range d.Spec.Tenants {
		t := &d.Spec.Tenants[i]
		for j := range t.Grants {
			g := lease.Grant{Tenant: t.Name, Priority: t.Priority, Preempt: t.Preempt, Spec: t.Grants[j], Overuse: t.Overuse}
			if t.Grants[j].GPUs != nil {
				g.GPUs = d.Grants[state.GrantKey{Tenant: t.Name, Grant: t.Grants[j].Name}]
			}
			v.Grants = append(v.Grants, g)
		}
	}
	return v
}

// Grantable is the memory of a shared GPU that grants may have together, in bytes.
func Grantable(d *state.Desired, g *observe.GPU) uint64 {
	capacity := capacityOf(g)
	return capacity - min(d.GPUMemoryReserve(g.Identity.UUID), capacity)
}

// capacityOf is the memory of a GPU without what the driver has reserved.
func capacityOf(g *observe.GPU) uint64 {
	if c := g.Memory.Total - min(g.Memory.Reserved, g.Memory.Total); c > 0 {
		return c
	}
	return g.Identity.Memory
}

func gpuView(d *state.Desired, e *api.GPUSpec, g *observe.GPU, foreign func(gpu.UUID, *gpu.Instance) bool) lease.GPUView {
	id := g.Identity.UUID
	v := lease.GPUView{
		UUID: id, Index: g.Identity.Index, Mode: e.Mode, Capacity: capacityOf(g),
		Reserve: d.GPUMemoryReserve(id), Overcommit: e.Overcommit, Owner: e.Engine(), SharedWith: e.ShareWith,
	}
	if e.Mode == api.ModeMPS && g.MPS != nil {
		v.MaxClients = g.MPS.MaxClients()
	}
	if e.Mode == api.ModeMPS {
		v.OneUser = oneUser(g.MPS)
	}
	if e.Mode != api.ModeMIG || g.Profiles == nil {
		return v
	}
	dynamic := e.MIG != nil && e.MIG.Dynamic
	if dynamic && g.MIG.Current && d.Enforcing() {
		v.DynamicProfiles = g.Profiles
	}
	for i := range g.Profiles.GI {
		if dynamic {
			v.Profiles = append(v.Profiles, ProfileView(d, id, g.Profiles, &g.Profiles.GI[i]))
		}
	}
	switch {
	case dynamic:
		v.Profiles = append(v.Profiles, layoutProfiles(d, id, api.LayoutOf(d.ComputeGrants()...), g.Profiles)...)
	case e.MIG != nil:
		v.Profiles = append(v.Profiles, layoutProfiles(d, id, e.MIG.Layout, g.Profiles)...)
	}
	for i := range g.Instances {
		v.Instances = append(v.Instances, instanceView(d, g, &g.Instances[i], foreign))
	}
	return v
}

// layoutProfiles are the profiles of these items, as this device names them.
func layoutProfiles(d *state.Desired, id gpu.UUID, layout []api.LayoutItem, of *gpu.Profiles) []lease.ProfileView {
	var out []lease.ProfileView
	for i := range layout {
		item := &layout[i]
		if slices.ContainsFunc(layout[:i], func(before api.LayoutItem) bool { return item.Same(&before) }) {
			continue
		}
		list, err := mig.Match(*of, state.LayoutRequest(item))
		if err != nil {
			continue // The layout cannot be reached, which its own condition says.
		}
		for j := range list {
			v := ProfileView(d, id, of, &list[j])
			if n, err := gpu.ParseProfile(item.Profile); err == nil && n.Compute != 0 && n.Compute != list[j].Slices {
				v.Split = gpu.ComputeName(v.Name, n.Compute)
			}
			if !slices.ContainsFunc(out, func(o lease.ProfileView) bool { return o.Name == v.Name && o.Split == v.Split }) {
				out = append(out, v)
			}
		}
	}
	at := func(v lease.ProfileView) int {
		return slices.IndexFunc(of.GI, func(p gpu.Profile) bool { return p.Name == v.Name })
	}
	slices.SortStableFunc(out, func(a, b lease.ProfileView) int { return at(a) - at(b) })
	return out
}

// ComputeViews are the compute instances of an instance that is split; nil for the usual single one with all slices.
func ComputeViews(in *gpu.Instance, of *lease.ProfileView) []lease.ComputeView {
	if !in.Split(of.Slices) {
		return nil
	}
	out := make([]lease.ComputeView, len(in.Compute))
	for i, c := range in.Compute {
		out[i] = lease.ComputeView{UUID: c.UUID, Name: gpu.ComputeName(of.Name, c.SliceCount()), Slices: c.SliceCount()}
	}
	return out
}

func instanceView(d *state.Desired, g *observe.GPU, in *gpu.Instance, foreign func(gpu.UUID, *gpu.Instance) bool) lease.InstanceView {
	v := lease.InstanceView{
		Placement:   in.Placement,
		ProfileID:   in.ProfileID,
		ProfileView: lease.ProfileView{Name: g.Profiles.GIName(in.ProfileID), Memory: in.Memory.Total},
	}
	for i := range g.Profiles.GI {
		if p := &g.Profiles.GI[i]; p.ID == in.ProfileID {
			v.ProfileView = ProfileView(d, g.Identity.UUID, g.Profiles, p)
		}
	}
	for _, c := range in.Compute {
		v.UUIDs = append(v.UUIDs, c.UUID)
	}
	v.InUse = slices.ContainsFunc(g.Processes, func(p gpu.Process) bool { return p.GI != nil && *p.GI == in.ID })
	v.Pinned = v.InUse
	switch {
	case foreign(g.Identity.UUID, in):
		v.Unusable, v.Pinned, v.InUse = "it is not managed by gpushare", true, false
	case v.MPS && len(in.Compute) > 1:
		v.Unusable = severalCompute
	case len(in.Compute) == 0:
		v.Unusable = "it has no compute instance"
	case slices.Contains(v.UUIDs, ""):
		v.Unusable = g.MIG.Missing.NoDevice().Error() // CUDA would not find it.
	default:
		v.Compute = ComputeViews(in, &v.ProfileView)
	}
	if v.MPS {
		v.OneUser, v.MaxClients = oneUser(g.MPSAt(in.Placement)), MaxClientsOf(g, in)
	}
	return v
}

// ProfileView is the part of a profile of a GPU, which has these profiles, that the lease table reads.
func ProfileView(d *state.Desired, id gpu.UUID, of *gpu.Profiles, p *gpu.Profile) lease.ProfileView {
	return lease.ProfileView{
		Name: p.Name, Slices: p.Slices, Memory: p.Memory, Attributes: p.Attributes, MPS: d.SharesInstances(id, of, p.Name),
	}
}
