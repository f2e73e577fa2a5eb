package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
)

// wallsWanted works out the slices. What was worked out last is kept: planning and judging ask for the same.
func (d *Policy) wallsWanted(want *desired, node *observe.Node, going []step.Step) (*wanted, error) {
	if w := d.walls.Load(); w != nil && w.node == node && w.spec == want && len(going) == 0 {
		return w, nil
	}
	hw, err := d.hardware(node, going)
	if err != nil {
		return nil, err
	}
	w := &wanted{node: node, spec: want}
	w.slices, w.missing = isolation.Desired(&hw, d.tenants(want, &hw))
	if len(going) == 0 {
		d.walls.Store(w)
	}
	return w, nil
}

// neverRead tells whether there is a GPU that did not answer since the daemon began: nothing is known of it, and rules
// that leave it out would take it away from whoever has it. Slices that stand are then left as they are; new ones are
// made, because no process may run in a slice without limits. Of a GPU whose record is from before a boot or a reload of
// the driver enough is known: nobody has anything of it, and what stands open is to be closed before it is another's.
func (d *Policy) neverRead(node *observe.Node) bool {
	achieved := d.state.Kept().Achieved
	return slices.ContainsFunc(node.GPUs, func(g observe.GPU) bool {
		a, ok := achieved[g.Identity.UUID]
		return g.Err != nil && g.Memory.Total == 0 && !(ok && epochOver(a.Epoch, node))
	})
}

// hardware is what walls are made of, without the instances that are about to go.
func (d *Policy) hardware(node *observe.Node, going []step.Step) (isolation.Hardware, error) {
	host, err := d.hosts.At(node)
	if err != nil {
		return isolation.Hardware{}, err
	}
	hw := isolation.Hardware{Host: host}
	going = append(slices.Clip(going), d.unseen.going(node)...)
	for i := range node.GPUs {
		// One that does not answer now is what it was: its leases must not be shut out of it for that.
		s := node.GPUs[i].Snapshot
		for _, g := range going {
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

// tenants translates the spec for isolation.
func (d *Policy) tenants(want *desired, hw *isolation.Hardware) []isolation.Tenant {
	if want.spec == nil {
		return nil
	}
	out := make([]isolation.Tenant, 0, len(want.spec.Tenants))
	for i := range want.spec.Tenants {
		t := &want.spec.Tenants[i]
		it := isolation.Tenant{Name: t.Name, Limits: sliceLimits(t), Classes: t.Devices}
		if t.CPU != nil {
			it.Near = t.CPU.Near
		}
		for j := range t.GPU {
			g := &t.GPU[j]
			it.Grants = append(it.Grants, isolation.Grant{Name: g.Name, Targets: d.targets(g, want.grants[grantKey{t.Name, g.Name}], hw)})
		}
		out = append(out, it)
	}
	return out
}

// targets is what a grant's slice may open now: whole GPUs, or the instances of ours that it could be given.
func (d *Policy) targets(g *api.GrantSpec, ids []gpu.UUID, hw *isolation.Hardware) []isolation.Target {
	var out []isolation.Target
	for _, id := range ids {
		i := slices.IndexFunc(hw.GPUs, func(s gpu.Snapshot) bool { return s.Identity.UUID == id })
		if i < 0 {
			continue
		}
		if g.Kind() != api.ModeMIG {
			if !hw.GPUs[i].MIG.Current {
				out = append(out, isolation.Target{GPU: id})
			}
			continue
		}
		for j := range hw.GPUs[i].Instances {
			if in := &hw.GPUs[i].Instances[j]; d.state.ours(id, in) && len(in.Compute) > 0 && d.matches(g, id, in) {
				out = append(out, isolation.Target{GPU: id, Instance: &in.Placement})
			}
		}
	}
	return out
}

// matches tells whether an instance is what a MIG grant asks for, by the device's own profiles.
func (d *Policy) matches(g *api.GrantSpec, id gpu.UUID, in *gpu.Instance) bool {
	o, ok := d.observer.Last().GPU(id)
	if !ok || o.Profiles == nil {
		return false
	}
	i := slices.IndexFunc(o.Profiles.GI, func(p gpu.Profile) bool { return p.ID == in.ProfileID })
	return i >= 0 && lease.Matches(g, profileView(&o.Profiles.GI[i]))
}

// deviceRules are exactly the nodes that a lease needs.
func (d *Policy) deviceRules(node *observe.Node, l *lease.Lease) ([]cgroup.DeviceRule, []string, error) {
	hw, err := d.hardware(node, nil)
	if err != nil {
		return nil, nil, err
	}
	return d.rulesOn(&hw, l)
}

// rulesOn is deviceRules on hardware that was read before.
func (d *Policy) rulesOn(hw *isolation.Hardware, l *lease.Lease) ([]cgroup.DeviceRule, []string, error) {
	var targets []isolation.Target
	stale := d.state.stale(l)
	for _, id := range l.Place.GPUs {
		if stale {
			break // What has its device numbers now is another instance.
		}
		targets = append(targets, isolation.Target{GPU: id, Instance: l.Place.Instance})
	}
	var classes []string
	if t, ok := d.state.Desired().tenant(l.Terms.Tenant); ok {
		classes = t.Devices
	}
	rules, missing, err := isolation.Rules(hw, targets, classes)
	if stale {
		missing = append(missing, "its MIG instance is gone, and what is in its place is another one")
	}
	return rules, missing, err
}

// environment is what a lease's processes get.
func (d *Policy) environment(ctx context.Context, l *lease.Lease) (map[string]string, []string, error) {
	in := isolation.Lease{
		ID: l.ID, Tenant: l.Terms.Tenant, Grant: l.Terms.Spec.Name, Devices: l.Place.Devices, Timesliced: l.Terms.Kind() == api.ModeTimeslice,
	}
	if l.Terms.Kind() == api.ModeMPS && len(l.Place.GPUs) == 1 {
		var err error
		if in.MPS, err = d.mpsEnvironment(ctx, l); err != nil {
			return nil, nil, err
		}
	}
	set, unset := isolation.Environment(in)
	return set, unset, nil
}

// widener makes each step that grants access anew from what is observed when its turn comes: a slot's next instance has
// the minors of the one before, so nothing is granted on expectation. One observation serves a whole change.
func (d *Policy) widener() func(ctx context.Context, s step.Step) (step.Step, bool, error) {
	var once sync.Once
	var now map[cgroup.SliceName]cgroup.Slice
	var failed error
	return func(ctx context.Context, s step.Step) (step.Step, bool, error) {
		if s.Kind == isolation.KindGuard {
			return d.guardNow(ctx, s)
		}
		if s.Kind != isolation.KindSet {
			return s, true, nil
		}
		once.Do(func() { now, failed = d.slicesNow(ctx) })
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

func (d *Policy) slicesNow(ctx context.Context) (map[cgroup.SliceName]cgroup.Slice, error) {
	w, err := d.wallsWanted(d.state.Desired(), d.observer.Observe(ctx), nil)
	if err != nil {
		return nil, err
	}
	out := map[cgroup.SliceName]cgroup.Slice{}
	for _, s := range w.slices {
		out[s.Name] = s
	}
	return out, nil
}

// judgeSoft turns what walls and MPS lack into conditions.
func (d *Converger) judgeSoft(want *desired, node *observe.Node) {
	lacks := map[string]api.Condition{}
	if want.enforcing() && node.DriverErr == nil {
		d.judgeWalls(want, node, lacks)
	}
	d.judgeMigration(want, lacks)
	d.Conditions.replace("not-enforced", lacks)
	d.judgeGuard(want, node)
	d.judgeMPS(want, node)
}

func (d *Converger) judgeWalls(want *desired, node *observe.Node, lacks map[string]api.Condition) {
	info := d.port.Info()
	w, err := d.policy.wallsWanted(want, node, nil)
	if err != nil {
		lacks["host"] = api.Condition{Message: err.Error()}
		return
	}
	for _, m := range w.missing {
		lacks[m.Slice.String()+m.Text] = api.Condition{Tenant: m.Slice.Tenant, Message: m.Text}
	}
	// One line for the node is enough: a line for each tenant would hide the rest.
	var names []string
	for _, s := range w.slices {
		if s.Name.Grant != "" {
			continue
		}
		for _, name := range dropped(s.Limits, info) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	where := " on " + adapterText(d.port.Info())
	if len(names) > 0 {
		lacks["limits"] = api.Condition{Message: strings.Join(names, ", ") + " limits are not enforced" + where, Hint: "'gpushare tenant show' says which; systemd with cgroup v2 enforces all of them"}
	}
	if len(w.slices) > 0 && !info.Devices {
		how := where
		if info.NoDevices != "" {
			how += ": " + info.NoDevices
		}
		lacks["devices"] = api.Condition{Message: "device walls are not enforced" + how, Hint: "a tenant is kept to its GPUs by its environment only; run gpushared as root on a host with cgroup v2"}
	}
	sliced := slices.ContainsFunc(node.GPUs, func(g observe.GPU) bool { return want.mode(g.Identity.UUID) == api.ModeTimeslice })
	if err := d.guardReady(); sliced && !info.Freeze {
		lacks["freeze"] = api.Condition{Message: "time shares are not enforced" + where, Hint: "nothing can be frozen: run gpushared as root on a host with cgroup v2"}
	} else if sliced && err != nil {
		lacks["freeze"] = api.Condition{Message: "time shares are not enforced: " + err.Error(), Hint: "start gpushare-thaw: 'systemctl start gpushare-thaw'"}
	}
}

func dropped(l cgroup.Limits, info cgroup.Info) []string {
	_, gone := l.Only(info.Limits)
	return gone
}
