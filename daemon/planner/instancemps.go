package planner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/mps"
)

// severalCompute is why an instance is not shared. Source: NVIDIA's MPS guide, section on MIG: one control daemon for each
// compute instance.
const severalCompute = "it has several compute instances, and MPS serves one"

// instanceMPS returns the control daemons that the instances of a GPU need after these steps. Of an instance that the steps create
// the MIG device is not known yet.
func instanceMPS(want *state.Desired, g *observe.GPU, hardware []step.Step, managed ManagedInstance) map[mps.Device]mps.Settings {
	id := g.Identity.UUID
	out := map[mps.Device]mps.Settings{}
	for i := range g.Instances {
		in := &g.Instances[i]
		if !want.SharesInstances(id, g.Profiles, g.Profiles.GIName(in.ProfileID)) || !managed(id, in) || len(in.Compute) != 1 ||
			in.Compute[0].UUID == "" {
			continue
		}
		set := instanceSettings(want, g, in.ProfileID, in.Placement)
		set.MIG = in.Compute[0].UUID
		out[set.Device()] = set
	}
	for i := range hardware {
		s := &hardware[i]
		var args mig.InstanceArgs
		if s.GPU != string(id) || s.Kind != mig.KindCreate && s.Kind != mig.KindDestroy || json.Unmarshal(s.Args, &args) != nil {
			continue
		}
		set := instanceSettings(want, g, args.ProfileID, args.Placement)
		delete(out, set.Device())
		if s.Kind == mig.KindCreate && want.SharesInstances(id, g.Profiles, args.Name) && len(args.Compute) <= 1 {
			out[set.Device()] = set
		}
	}
	return out
}

// instanceSettings are the settings of the control daemon of an instance, without its MIG device.
func instanceSettings(want *state.Desired, g *observe.GPU, profile uint32, at gpu.Placement) mps.Settings {
	set := mps.Settings{GPU: g.Identity.UUID, Instance: at}
	if g.Profiles == nil {
		return set
	}
	for i := range g.Profiles.GI {
		if p := &g.Profiles.GI[i]; p.ID == profile {
			of := ProfileView(want, set.GPU, g.Profiles, p)
			limitByGrants(&set, want, p.Memory, func(grant *api.GrantSpec) bool { return grant.InInstance() && lease.Matches(grant, of) })
		}
	}
	return set
}

// SharesInstance reports whether the leases of a grant may be on the shared instance at a placement.
func SharesInstance(want *state.Desired, g *observe.GPU, grant *api.GrantSpec, at gpu.Placement) bool {
	in := g.InstanceAt(at)
	if in == nil || g.Profiles == nil {
		return false
	}
	i := slices.IndexFunc(g.Profiles.GI, func(p gpu.Profile) bool { return p.ID == in.ProfileID })
	return i >= 0 && lease.Matches(grant, ProfileView(want, g.Identity.UUID, g.Profiles, &g.Profiles.GI[i]))
}

// replacedMPS removes from desired what is for instances that the steps create in place of others with a control daemon, and
// returns it.
func replacedMPS(
	desired map[mps.Device]mps.Settings, observed map[mps.Device]mps.Observed, hardware []step.Step,
) map[mps.Device]mps.Settings {
	out := map[mps.Device]mps.Settings{}
	for i := range hardware {
		var args mig.InstanceArgs
		if hardware[i].Kind != mig.KindCreate || json.Unmarshal(hardware[i].Args, &args) != nil {
			continue
		}
		d := mps.Device{GPU: gpu.UUID(hardware[i].GPU), Instance: args.Placement}
		if set, ok := desired[d]; ok && observed[d].State != nil {
			out[d] = set
			delete(desired, d)
		}
	}
	return out
}

// processesOf returns the processes on the instance at a placement.
func processesOf(g *observe.GPU, at gpu.Placement) []gpu.Process {
	in := g.InstanceAt(at)
	if in == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(g.Processes), func(p gpu.Process) bool { return p.GI == nil || *p.GI != in.ID })
}

// DownInstances are the shared instances of a GPU whose control daemon does not run as it should: they exist, can be shared, and
// gpushare manages them.
func DownInstances(want *state.Desired, g *observe.GPU, managed ManagedInstance) []mps.Device {
	var out []mps.Device
	for d := range instanceMPS(want, g, nil, managed) {
		if want.Enforcing() && !g.MPSOf(d).Healthy() {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b mps.Device) int { return cmp.Compare(a.Instance.Start, b.Instance.Start) })
	return out
}

// DeviceName names a GPU, or an instance of it, in messages: "GPU 0", "GPU 0, 3g.20gb at 4".
func DeviceName(g *observe.GPU, d mps.Device) string {
	name := g.Identity.Name()
	if !d.IsInstance() {
		return name
	}
	if in := g.InstanceAt(d.Instance); in != nil {
		return fmt.Sprintf("%s, %s at %d", name, g.Profiles.GIName(in.ProfileID), d.Instance.Start)
	}
	return fmt.Sprintf("%s, the instance at %d", name, d.Instance.Start)
}

// feasibleInInstance refuses a share that no instance of the layouts can give.
func feasibleInInstance(want *state.Desired, n *observe.Node, g *api.GrantSpec, ids []gpu.UUID, at string) []api.FieldError {
	var largest uint64
	matching := false
	for _, id := range ids {
		gp, ok := n.GPU(id)
		if !ok || gp.Profiles == nil {
			return nil // Its profiles are not known now.
		}
		for i := range gp.Profiles.GI {
			p := ProfileView(want, id, gp.Profiles, &gp.Profiles.GI[i])
			if p.MPS && lease.Matches(g, p) {
				matching, largest = true, max(largest, p.Memory-min(want.GPUMemoryReserve(id), p.Memory))
			}
		}
	}
	need := state.GrantMemory(g)
	switch {
	case len(ids) == 0:
	case !matching:
		return []api.FieldError{
			{
				Path:    at,
				Message: "none of its GPUs has such an instance that is shared through MPS",
				Hint:    "write its profile into gpus[].mig.layout and gpus[].mig.mps",
			},
		}
	case need > largest || largest == 0:
		return []api.FieldError{
			{
				Path: at + ".mps.gpu_memory",
				Message: fmt.Sprintf(
					"%s is more than such an instance has: %s after node.gpu_memory_reserve", api.Bytes(need).Short(),
					api.Bytes(largest).Short(),
				),
				Hint: "grant less, or share larger instances",
			},
		}
	}
	return nil
}
