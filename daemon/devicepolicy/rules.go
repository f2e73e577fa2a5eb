package devicepolicy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/mps"
)

// DesiredSlices returns the slices that should exist. The last result is kept, because the plan and the conditions need the
// same.
func (pol *Policy) DesiredSlices(want *state.Desired, node *observe.Node, hardwareSteps []step.Step) (*planner.DesiredSlices, error) {
	if w := pol.Slices.Load(); w != nil && w.Node == node && w.Spec == want && len(hardwareSteps) == 0 {
		return w, nil
	}
	hw, err := pol.hardware(node, hardwareSteps)
	if err != nil {
		return nil, err
	}
	former := state.FormerSlices(want, pol.Table.LiveUnder(want.Renames))
	w := &planner.DesiredSlices{Node: node, Spec: want}
	w.Slices, w.Missing = isolation.Desired(&hw, pol.tenants(want, &hw, former))
	if unread := pol.NeverRead(node); len(unread) > 0 {
		isolation.KeepUnread(
			&hw,
			w.Slices,
			node.Slices,
			unread,
			func(name cgroup.SliceName) bool { return usesAny(want, state.GrantOfSlice(former, name), unread) },
		)
	}
	if len(hardwareSteps) == 0 {
		pol.Slices.Store(w)
	}
	return w, nil
}

// NeverRead returns the GPUs that have not answered since the daemon started. Nothing is known of them, and device rules without
// them would revoke them from their leases: what existing slices allow on them is kept. A GPU whose record is from before a boot
// or a reload of the driver does not count: no lease has anything on it, and open rules must be closed before another tenant gets
// it.
func (pol *Policy) NeverRead(node *observe.Node) map[gpu.UUID]bool {
	achieved := pol.State.Stored().Achieved
	out := map[gpu.UUID]bool{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		a, ok := achieved[g.Identity.UUID]
		if g.Err != nil && g.Memory.Total == 0 && !(ok && state.EpochEnded(a.Epoch, node)) {
			out[g.Identity.UUID] = true
		}
	}
	return out
}

// usesAny reports whether a grant of a slice may use one of the GPUs; of the slice of a tenant, any of its grants.
func usesAny(want *state.Desired, name state.GrantKey, gpus map[gpu.UUID]bool) bool {
	for k, ids := range want.Grants {
		if k.Tenant == name.Tenant && (name.Grant == "" || k.Grant == name.Grant) &&
			slices.ContainsFunc(ids, func(id gpu.UUID) bool { return gpus[id] }) {
			return true
		}
	}
	return false
}

// hardware returns the input for device rules, without the instances that hardwareSteps destroy.
func (pol *Policy) hardware(node *observe.Node, hardwareSteps []step.Step) (isolation.Hardware, error) {
	host, err := pol.Hosts.At(node)
	if err != nil {
		return isolation.Hardware{}, err
	}
	hw := isolation.Hardware{Host: host}
	hardwareSteps = append(slices.Clip(hardwareSteps), pol.UnknownOutcome.unconfirmed(node)...)
	for i := range node.GPUs {
		// A GPU that does not answer now keeps its last reading, so that its leases keep their access.
		s := node.GPUs[i].Snapshot
		for _, g := range hardwareSteps {
			var args mig.InstanceArgs
			if g.Kind != mig.KindDestroy || g.GPU != string(s.Identity.UUID) || json.Unmarshal(g.Args, &args) != nil {
				continue
			}
			s.Instances = slices.DeleteFunc(slices.Clone(s.Instances), func(in gpu.Instance) bool { return in.Placement == args.Placement })
		}
		hw.GPUs = append(hw.GPUs, s)
	}
	return hw, nil
}

// tenants translates the spec for isolation. What has former slices is also there under these names.
func (pol *Policy) tenants(want *state.Desired, hw *isolation.Hardware, former []state.FormerSlice) []isolation.Tenant {
	if want.Spec == nil {
		return nil
	}
	out := make([]isolation.Tenant, 0, len(want.Spec.Tenants))
	for i := range want.Spec.Tenants {
		t := &want.Spec.Tenants[i]
		it := isolation.Tenant{Name: t.Name, Limits: SliceLimits(t), Classes: t.Devices}
		if t.CPU != nil {
			it.NUMA = t.CPU.NUMA
		}
		for j := range t.Grants {
			g := &t.Grants[j]
			it.Grants = append(
				it.Grants,
				isolation.Grant{Name: g.Name, Targets: pol.targets(g, want.Grants[state.GrantKey{Tenant: t.Name, Grant: g.Name}], hw)},
			)
		}
		out = append(out, it)
	}
	return withFormer(out, former)
}

// withFormer adds the slices of former names: each is as that of what it belongs to now.
func withFormer(tenants []isolation.Tenant, former []state.FormerSlice) []isolation.Tenant {
	at := func(name string) int {
		return slices.IndexFunc(tenants, func(t isolation.Tenant) bool { return t.Name == name })
	}
	for _, f := range former {
		of := at(f.Of.Tenant)
		if of < 0 {
			continue
		}
		if f.Name.Grant == "" {
			t := tenants[of]
			t.Name, t.Grants = f.Name.Tenant, nil
			tenants = append(tenants, t)
			continue
		}
		g := slices.IndexFunc(tenants[of].Grants, func(g isolation.Grant) bool { return g.Name == f.Of.Grant })
		if in := at(f.Name.Tenant); in >= 0 && g >= 0 {
			tenants[in].Grants = append(tenants[in].Grants, isolation.Grant{Name: f.Name.Grant, Targets: tenants[of].Grants[g].Targets})
		}
	}
	return tenants
}

// targets returns what a grant's slice may open now: whole GPUs, or the managed instances that its leases could get.
func (pol *Policy) targets(g *api.GrantSpec, ids []gpu.UUID, hw *isolation.Hardware) []isolation.Target {
	var out []isolation.Target
	for _, id := range ids {
		i := slices.IndexFunc(hw.GPUs, func(s gpu.Snapshot) bool { return s.Identity.UUID == id })
		if i < 0 {
			continue
		}
		if g.Mode() != api.ModeMIG {
			if !hw.GPUs[i].MIG.Current {
				out = append(out, isolation.Target{GPU: id})
			}
			continue
		}
		for j := range hw.GPUs[i].Instances {
			if in := &hw.GPUs[i].Instances[j]; pol.State.ManagesInstance(id, in) && len(in.Compute) > 0 {
				out = append(out, pol.targetsIn(g, id, in)...)
			}
		}
	}
	return out
}

// target is a GPU, the instance at a placement of it, or one compute instance of that.
func (pol *Policy) target(id gpu.UUID, at *gpu.Placement, compute gpu.UUID) isolation.Target {
	out := isolation.Target{GPU: id, Instance: at, Compute: compute}
	last := pol.Observer.Last()
	if at == nil || last == nil {
		return out
	}
	o, ok := last.GPU(id)
	if !ok || o.Profiles == nil {
		return out
	}
	if in := o.InstanceAt(*at); in != nil {
		i := slices.IndexFunc(o.Profiles.GI, func(p gpu.Profile) bool { return p.ID == in.ProfileID })
		out.Graphics = i >= 0 && slices.Contains(o.Profiles.GI[i].Attributes, "gfx")
	}
	return out
}

// targetsIn returns what a MIG grant's slice may open of an instance, by the profiles of the device: all of it, or of one that
// is split those compute instances that match.
func (pol *Policy) targetsIn(g *api.GrantSpec, id gpu.UUID, in *gpu.Instance) []isolation.Target {
	o, ok := pol.Observer.Last().GPU(id)
	if !ok || o.Profiles == nil {
		return nil
	}
	i := slices.IndexFunc(o.Profiles.GI, func(p gpu.Profile) bool { return p.ID == in.ProfileID })
	if i < 0 {
		return nil
	}
	of := planner.ProfileView(pol.State.Desired(), id, o.Profiles, &o.Profiles.GI[i])
	parts := planner.ComputeViews(in, &of)
	if len(parts) == 0 && lease.Matches(g, of) {
		return []isolation.Target{pol.target(id, &in.Placement, "")}
	}
	var out []isolation.Target
	for _, c := range parts {
		if of.Split = c.Name; lease.Matches(g, of) {
			out = append(out, pol.target(id, &in.Placement, c.UUID))
		}
	}
	return out
}

// DeviceRules returns exactly the device nodes that a lease needs.
func (pol *Policy) DeviceRules(node *observe.Node, l *lease.Lease) ([]cgroup.DeviceRule, []string, error) {
	hw, err := pol.hardware(node, nil)
	if err != nil {
		return nil, nil, err
	}
	return pol.rulesOn(&hw, l)
}

// rulesOn is DeviceRules with hardware that was read before.
func (pol *Policy) rulesOn(hw *isolation.Hardware, l *lease.Lease) ([]cgroup.DeviceRule, []string, error) {
	var targets []isolation.Target
	stale := pol.State.Stale(l)
	for _, id := range l.Place.GPUs {
		if stale {
			break // Another instance has its device numbers now.
		}
		targets = append(targets, pol.target(id, l.Place.Instance, l.Place.Compute))
	}
	var classes []string
	if t, ok := pol.State.Desired().Tenant(l.Terms.Tenant); ok {
		classes = t.Devices
	}
	rules, missing, err := isolation.Rules(hw, targets, classes)
	if stale {
		missing = append(missing, "its MIG instance was removed, and another one is at its placement")
	}
	return rules, missing, err
}

// Environment returns the environment variables for a lease's processes, and those to unset.
func (pol *Policy) Environment(ctx context.Context, l *lease.Lease) (map[string]string, []string, error) {
	in := isolation.Lease{
		ID:         l.ID,
		Tenant:     l.Terms.Tenant,
		Grant:      l.Terms.Spec.Name,
		Devices:    l.Place.Devices,
		Timesliced: l.Terms.Kind() == api.ModeTimeslice,
	}
	if l.Terms.Kind() == api.ModeMPS && len(l.Place.GPUs) == 1 {
		var err error
		if in.MPS, err = pol.mpsEnvironment(ctx, l); err != nil {
			return nil, nil, err
		}
	}
	set, unset := isolation.Environment(in)
	return set, unset, nil
}

// Granter computes each step that grants access again, from what is observed when the step is carried out: the next instance
// at a placement has the minors of the one before, so access is never granted from a plan. One observation serves a whole
// change.
func (pol *Policy) Granter() func(ctx context.Context, s step.Step) (step.Step, bool, error) {
	var once sync.Once
	var now map[cgroup.SliceName]cgroup.Slice
	var failed error
	return func(ctx context.Context, s step.Step) (step.Step, bool, error) {
		if s.Kind == isolation.KindLoginFilter {
			return pol.filterNow(ctx, s)
		}
		if s.Kind == mps.KindStart {
			return pol.startNow(ctx, s)
		}
		if s.Kind != isolation.KindSet {
			return s, true, nil
		}
		once.Do(func() { now, failed = pol.slicesNow(ctx) })
		if failed != nil {
			return s, false, failed
		}
		var planned cgroup.Slice
		if err := json.Unmarshal(s.Args, &planned); err != nil {
			return s, false, fmt.Errorf("cannot read the step: %w", err)
		}
		fresh, ok := now[planned.Name]
		s.Args = step.Must(fresh)
		return s, ok, nil
	}
}

func (pol *Policy) slicesNow(ctx context.Context) (map[cgroup.SliceName]cgroup.Slice, error) {
	w, err := pol.DesiredSlices(pol.State.Desired(), pol.Observer.Observe(ctx), nil)
	if err != nil {
		return nil, err
	}
	out := map[cgroup.SliceName]cgroup.Slice{}
	for _, s := range w.Slices {
		out[s.Name] = s
	}
	return out, nil
}

// GPUsOf returns the GPUs that rules allow.
func GPUsOf(node *observe.Node, rules []cgroup.DeviceRule) []gpu.UUID {
	var out []gpu.UUID
	for i := range node.GPUs {
		if id := &node.GPUs[i].Identity; isolation.OpensGPU(rules, id.Minor) {
			out = append(out, id.UUID)
		}
	}
	return out
}
