package daemon

import (
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// view is what the lease table decides from, now.
func view(s *State, node *observe.Node) lease.View {
	closed := map[gpu.UUID]string{}
	for id := range s.held() {
		closed[id] = "it is held" // Why may name other tenants' leases, and this is told to whoever waits.
	}
	if ch := s.Changing(); ch != nil {
		for id := range ch.gpus {
			closed[id] = "it is being changed by " + ch.operation
		}
	}
	want := s.Desired()
	if want.enforcing() && len(s.Kept().Change) == 0 {
		closeLost(s, closed, want, node)
	}
	v := viewOf(want, node, closed, func(id gpu.UUID, in *gpu.Instance) bool { return want.enforcing() && !s.ours(id, in) })
	numberInstances(s, &v)
	return v
}

// closeLost closes GPUs whose layout was not restored yet: leases come after it.
func closeLost(s *State, closed map[gpu.UUID]string, want *desired, node *observe.Node) {
	st := s.Kept()
	for id := range want.gpus {
		if a, ok := st.Achieved[id]; ok && closed[id] == "" && epochOver(a.Epoch, node) {
			closed[id] = "its layout is being restored"
		}
	}
}

// numberInstances tells the lease table which instance is which, and what is closed only for a moment.
func numberInstances(s *State, v *lease.View) {
	st, ch := s.Kept(), s.Changing()
	for i := range v.GPUs {
		g := &v.GPUs[i]
		a := st.Achieved[g.UUID]
		for j := range g.Instances {
			g.Instances[j].Generation = instanceNumber(&a, g.Instances[j].Placement)
		}
		g.Soon = ch != nil && ch.brief && ch.gpus[g.UUID]
	}
}

// viewOf is what the lease table decides from. closed says why a GPU takes no lease now.
func viewOf(d *desired, n *observe.Node, closed map[gpu.UUID]string, foreign func(gpu.UUID, *gpu.Instance) bool) lease.View {
	v := lease.View{Generation: d.generation}
	if n.DriverErr != nil {
		v.Blind = n.DriverErr.Error()
	}
	for i := range n.GPUs {
		if e := d.gpus[n.GPUs[i].Identity.UUID]; e != nil {
			v.GPUs = append(v.GPUs, gpuView(d, e, &n.GPUs[i], closed, foreign))
		}
	}
	if d.spec == nil {
		return v
	}
	for i := range d.spec.Tenants {
		t := &d.spec.Tenants[i]
		for j := range t.GPU {
			g := lease.Grant{Tenant: t.Name, Priority: t.Priority, Spec: t.GPU[j], Overuse: t.Overuse}
			if t.GPU[j].GPUs != nil {
				g.GPUs = d.grants[grantKey{t.Name, t.GPU[j].Name}]
			}
			v.Grants = append(v.Grants, g)
		}
	}
	return v
}

func gpuView(d *desired, e *api.GPUSpec, g *observe.GPU, closed map[gpu.UUID]string, foreign func(gpu.UUID, *gpu.Instance) bool) lease.GPUView {
	id := g.Identity.UUID
	v := lease.GPUView{
		UUID: id, Index: g.Identity.Index, Mode: e.Mode, Capacity: g.Memory.Total - min(g.Memory.Reserved, g.Memory.Total),
		Reserve: d.reserve(id), Overcommit: e.Overcommit, Closed: closed[id],
	}
	if v.Capacity == 0 {
		v.Capacity = g.Identity.Memory
	}
	if g.Err != nil {
		v.Closed = g.Err.Error()
	}
	if e.Mode != api.ModeMIG || g.Profiles == nil {
		return v
	}
	inLayout := map[string]bool{}
	if e.MIG != nil {
		for _, name := range e.MIG.Layout {
			inLayout[name] = true
		}
	}
	dynamic := e.MIG != nil && e.MIG.Dynamic
	if dynamic && g.MIG.Current && d.enforcing() {
		v.Grid = g.Profiles
	}
	for i := range g.Profiles.GI {
		p := &g.Profiles.GI[i]
		if inLayout[p.Name] || dynamic {
			v.Profiles = append(v.Profiles, profileView(p))
		}
	}
	for i := range g.Instances {
		v.Instances = append(v.Instances, instanceView(g, &g.Instances[i], foreign))
	}
	return v
}

func instanceView(g *observe.GPU, in *gpu.Instance, foreign func(gpu.UUID, *gpu.Instance) bool) lease.InstanceView {
	v := lease.InstanceView{Placement: in.Placement, ProfileID: in.ProfileID, ProfileView: lease.ProfileView{Name: profileName(g.Profiles, in.ProfileID), Memory: in.Memory.Total}}
	for i := range g.Profiles.GI {
		if p := &g.Profiles.GI[i]; p.ID == in.ProfileID {
			v.ProfileView = profileView(p)
		}
	}
	for _, c := range in.Compute {
		v.UUIDs = append(v.UUIDs, c.UUID)
	}
	v.Held = slices.ContainsFunc(g.Processes, func(p gpu.Process) bool { return p.GI != nil && *p.GI == in.ID })
	v.Stays = v.Held
	switch {
	case foreign(g.Identity.UUID, in):
		v.Unusable, v.Stays, v.Held = "it was not made by gpushare", true, false
	case len(in.Compute) == 0:
		v.Unusable = "it has no compute instance"
	}
	return v
}

func profileView(p *gpu.Profile) lease.ProfileView {
	return lease.ProfileView{Name: p.Name, Slices: p.Slices, Memory: p.Memory, Attributes: p.Attributes}
}
