package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// GPUNamed finds a GPU by its index or UUID.
func GPUNamed(node *observe.Node, name string) (*observe.GPU, error) {
	i := slices.IndexFunc(node.GPUs, func(g observe.GPU) bool {
		return string(g.Identity.UUID) == name || fmt.Sprint(g.Identity.Index) == name
	})
	if i < 0 {
		return nil, &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("there is no GPU %q", name),
			Hint:    "'gpushare gpu list' shows them",
		}
	}
	return &node.GPUs[i], nil
}

// MPSGPU is GPUNamed for a GPU on which gpushare runs MPS.
func MPSGPU(want *state.Desired, node *observe.Node, name string) (*observe.GPU, error) {
	g, err := GPUNamed(node, name)
	if err != nil {
		return nil, err
	}
	if id := g.Identity.UUID; !want.WantsMPS(id) {
		return nil, &api.Error{
			Kind: api.KindInvalid,
			Message: fmt.Sprintf(
				"gpushare does not run MPS on %s: its mode is %s, and enforce is %s", g.Identity.Name(), want.Mode(id),
				enforceText(want),
			),
			Hint: "'gpushare mps list' shows the GPUs with MPS",
		}
	}
	return g, nil
}

func enforceText(want *state.Desired) string {
	if want.Enforcing() {
		return "on"
	}
	return "not on"
}

// DeviceNamed finds a GPU, or a MIG instance of it: by the GPU's index or UUID, "0:4" is the instance at 4 of GPU 0, or by the UUID of
// a MIG device.
func DeviceNamed(node *observe.Node, name string) (*observe.GPU, mps.Device, error) {
	for i := range node.GPUs {
		g := &node.GPUs[i]
		for j := range g.Instances {
			if in := &g.Instances[j]; slices.ContainsFunc(in.Compute, func(c gpu.ComputeInstance) bool { return string(c.UUID) == name }) {
				return g, mps.Device{GPU: g.Identity.UUID, Instance: in.Placement}, nil
			}
		}
	}
	of, start, inside := strings.Cut(name, ":")
	g, err := GPUNamed(node, of)
	if err != nil {
		return nil, mps.Device{}, err
	}
	if !inside {
		return g, mps.Whole(g.Identity.UUID), nil
	}
	for j := range g.Instances {
		if in := &g.Instances[j]; fmt.Sprint(in.Placement.Start) == start {
			return g, mps.Device{GPU: g.Identity.UUID, Instance: in.Placement}, nil
		}
	}
	return nil, mps.Device{}, &api.Error{
		Kind:    api.KindNotFound,
		Message: fmt.Sprintf("%s has no MIG instance at %q", g.Identity.Name(), start),
		Hint:    "'gpushare mps list' shows those with MPS",
	}
}

// MPSDevice is DeviceNamed for a GPU, or an instance, on which gpushare runs MPS.
func MPSDevice(want *state.Desired, node *observe.Node, name string) (*observe.GPU, mps.Device, error) {
	g, d, err := DeviceNamed(node, name)
	if err != nil {
		return nil, d, err
	}
	if !d.IsInstance() {
		if want.Enforcing() && want.HasMPS(d.GPU, true) {
			return nil, d, &api.Error{
				Kind: api.KindInvalid, Message: fmt.Sprintf("%s runs MPS in its MIG instances, each by itself", g.Identity.Name()),
				Hint: fmt.Sprintf("name one as %d:START; 'gpushare mps list' shows where they start", g.Identity.Index),
			}
		}
		g, err = MPSGPU(want, node, name)
		return g, d, err
	}
	if in := g.InstanceAt(d.Instance); !want.Enforcing() || !want.SharesInstances(d.GPU, g.Profiles, g.Profiles.GIName(in.ProfileID)) {
		return nil, d, &api.Error{
			Kind: api.KindInvalid,
			Message: fmt.Sprintf(
				"gpushare does not run MPS in %s: it is not shared, and enforce is %s", DeviceName(g, d), enforceText(want),
			),
			Hint: "'gpushare mps list' shows the GPUs and instances with MPS",
		}
	}
	return g, d, nil
}

// RestartMPS plans the restart of MPS on a GPU or an instance.
func RestartMPS(want *state.Desired, g *observe.GPU, d mps.Device, managed ManagedInstance) (step.Step, error) {
	if !d.IsInstance() {
		return mps.RestartStep(
			mpsSettings(want, g.Identity, want.GPUs[d.GPU]),
			mps.Observed{State: g.MPS, ComputeMode: g.ComputeMode, Processes: g.Processes},
		), nil
	}
	set, ok := instanceMPS(want, g, nil, managed)[d]
	if !ok {
		return step.Step{}, &api.Error{
			Kind:    api.KindUnavailable,
			Message: DeviceName(g, d) + " cannot be shared now: it is not managed by gpushare, or has not one compute instance",
			Hint:    "'gpushare mig list' shows it",
		}
	}
	s := mps.RestartStep(set, mps.Observed{State: g.MPSOf(d), Processes: processesOf(g, d.Instance)})
	s.Text = fmt.Sprintf("restart MPS in the instance at %d", d.Instance.Start)
	return s, nil
}

// MPSArguments is how a command of 'gpushare mps' names a GPU, or an instance of it.
func MPSArguments(g *observe.GPU, d mps.Device) string {
	if !d.IsInstance() {
		return g.Identity.Argument()
	}
	return fmt.Sprintf("%s:%d", g.Identity.Argument(), d.Instance.Start)
}
