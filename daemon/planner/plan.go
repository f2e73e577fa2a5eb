package planner

import (
	"errors"
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/mps"
)

// Authority is what the administrator allowed for one change. The zero value allows no disruption; the converge loop uses it.
type Authority struct {
	Force      bool `json:"force,omitempty"`
	AllowReset bool `json:"allow_reset,omitempty"`
	// Resets are the GPUs that AllowReset is for, because the administrator was shown these; nil: all that need it.
	Resets []string `json:"resets,omitempty"`
	// Drained are the engines that the administrator says have no job on the GPUs that the change is of.
	Drained []string `json:"-"`
}

// Usage answers which leases and processes use a device, for one moment.
type Usage struct {
	// Instance names the leases on an instance.
	Instance func(id gpu.UUID, p gpu.Placement) []string
	// GPU names the leases on a GPU.
	GPU func(id gpu.UUID) []string
	// Managed reports whether gpushare created or imported an instance.
	Managed func(id gpu.UUID, in *gpu.Instance) bool
	// Process describes a process. daemons are the MPS control daemons of its GPU.
	Process func(daemons []*mps.State, pid int) DeviceUser
	// OpenDevices is which processes have device nodes open, where that was read.
	OpenDevices OpenDevices
	// IgnoreKept plans as if every process could be stopped, to find what differs from the spec.
	IgnoreKept bool
	// Done: when it is closed, plans end with an error that is context.Canceled, because their caller no longer waits. nil: never.
	Done <-chan struct{}
	// Imported reports whether an administrator imported an instance; nil: none was.
	Imported func(id gpu.UUID, p gpu.Placement) bool
}

// GPUPlan is the steps that change the GPUs of the node.
type GPUPlan struct {
	Steps    []step.Step
	Problems map[gpu.UUID]error // by GPU: the reason why it cannot be changed as desired
	// Resets are the refusals of GPUs whose steps reset them without permission: see PlanRefusedResets.
	Resets map[gpu.UUID]error
}

// PlanRefusedResets plans the GPUs of which nothing but the permission to reset them is missing as if it were given: the plan shows what an
// administrator would permit. It is pure.
func (p *GPUPlan) PlanRefusedResets(d *state.Desired, n *observe.Node, use Usage, a Authority) {
	p.Resets = map[gpu.UUID]error{}
	a.AllowReset = true
	for i := range n.GPUs {
		g := &n.GPUs[i]
		id := g.Identity.UUID
		var refused *mig.ResetRequired
		if !errors.As(p.Problems[id], &refused) {
			continue
		}
		steps, err := PlanGPU(d.GPUs[id], g, use, a)
		if err != nil { // The permission would not be enough.
			p.Problems[id] = problem(g, err)
			continue
		}
		p.Steps = append(p.Steps, steps...)
		p.Resets[id] = p.Problems[id]
		delete(p.Problems, id)
	}
}

func problem(g *observe.GPU, err error) error {
	return fmt.Errorf("%s (%s): %w", g.Identity.Name(), g.Identity.UUID, err)
}

// PlanGPUs plans MIG modes, instances and compute modes. It is pure.
func PlanGPUs(d *state.Desired, n *observe.Node, use Usage, a Authority) GPUPlan {
	p := GPUPlan{Problems: map[gpu.UUID]error{}}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		id := g.Identity.UUID
		mode := d.Mode(id)
		if mode == api.ModeUnmanaged || mode == api.ModeExternal {
			continue
		}
		steps, err := PlanGPU(d.GPUs[id], g, use, a)
		if err != nil {
			p.Problems[id] = problem(g, err)
			continue
		}
		p.Steps = append(p.Steps, steps...)
	}
	return p
}

// PlanGPU plans one GPU.
func PlanGPU(e *api.GPUSpec, g *observe.GPU, use Usage, a Authority) ([]step.Step, error) {
	if g.Err != nil {
		return nil, g.Err
	}
	steps, err := planMIG(e, g, use, a)
	if err != nil {
		return nil, err
	}
	return append(steps, planComputeMode(e, g)...), nil
}

// planMIG plans the desired MIG mode and instances.
func planMIG(e *api.GPUSpec, g *observe.GPU, use Usage, a Authority) ([]step.Step, error) {
	target := mig.Target{On: e.Mode == api.ModeMIG}
	if !target.On && !g.MIG.Current && !g.MIG.Pending {
		return nil, nil
	}
	if target.On && e.MIG != nil {
		target.Requests = state.LayoutRequests(e.MIG.Layout)
	}
	device := mig.Device{MIG: g.MIG, Present: Present(e, g, use)}
	device.InUseBy, device.Unstoppable = inUseBy(g, nil, use)
	if g.Profiles != nil {
		device.Profiles, device.Assumed = *g.Profiles, g.ProfilesAssumed
	}
	r, err := mig.PlanDevice(device, target, mig.Options{Force: a.Force, AllowReset: a.AllowReset, Done: use.Done})
	if err != nil {
		return nil, err
	}
	return r.Steps(g.Identity.UUID), nil
}

// Present lists the instances of a GPU, and whether each may be changed.
func Present(e *api.GPUSpec, g *observe.GPU, use Usage) []mig.Present {
	dynamic := e.Mode == api.ModeMIG && e.MIG != nil && e.MIG.Dynamic
	out := make([]mig.Present, 0, len(g.Instances))
	for i := range g.Instances {
		in := &g.Instances[i]
		users, kept := inUseBy(g, in, use)
		// Instances created on demand are removed when they were idle for long, imported ones on request.
		keepable := dynamic || use.Imported != nil && use.Imported(g.Identity.UUID, in.Placement)
		out = append(out, mig.Present{
			Instance: *in,
			InUse:    len(users) > 0,
			InUseBy:  users,
			Pinned:   len(kept) > 0,
			Keepable: keepable,
			Foreign:  !use.Managed(g.Identity.UUID, in),
		})
	}
	return out
}

// KindComputeMode is the kind of step that sets a compute mode.
const KindComputeMode = "gpu.compute-mode"

// ComputeModeArgs are the arguments and the undo data of such a step.
type ComputeModeArgs struct {
	Mode gpu.ComputeMode `json:"mode"`
}

// planComputeMode lets several processes use a time-sliced GPU. On a GPU with MPS the step that starts MPS sets the mode; on
// all other GPUs it stays unchanged.
func planComputeMode(e *api.GPUSpec, g *observe.GPU) []step.Step {
	if e.Mode != api.ModeTimeslice || g.ComputeMode == gpu.ComputeModeUnknown || g.ComputeMode == gpu.ComputeDefault || g.MPS != nil {
		return nil
	}
	return []step.Step{
		computeModeStep(g, gpu.ComputeDefault, "time slicing needs a mode for several processes; it is "+string(g.ComputeMode)),
	}
}

func computeModeStep(g *observe.GPU, mode gpu.ComputeMode, reason string) step.Step {
	return step.Step{
		Kind: KindComputeMode, GPU: string(g.Identity.UUID), Phase: step.Change,
		Args: step.Must(ComputeModeArgs{mode}), Undo: step.Must(ComputeModeArgs{g.ComputeMode}),
		Text: "set the compute mode to " + string(mode), Reason: reason, Disruption: step.None,
	}
}
