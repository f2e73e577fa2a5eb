package planner

import (
	"fmt"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
	"github.com/gpushare/gpushare/mps"
)

// Authority is what the administrator allowed for one change. The zero value disturbs nobody: the converge loop's.
type Authority struct {
	Force      bool `json:"force,omitempty"`
	AllowReset bool `json:"allow_reset,omitempty"`
}

// Usage answers who uses what, from one moment.
type Usage struct {
	// instance names the leases that have an instance.
	Instance func(id gpu.UUID, p gpu.Placement) []string
	// gpu names the leases that have a place on a GPU.
	GPU func(id gpu.UUID) []string
	// ours tells whether we made an instance, or said that it is ours.
	Managed func(id gpu.UUID, in *gpu.Instance) bool
	// process tells who a process is. The MPS state is that of its GPU.
	Process func(m *mps.State, pid int) DeviceUser
	// opened is who has devices open, where somebody looked.
	OpenDevices OpenDevices
	// anyone: that nobody may stop some processes is left out of account, as by who only asks what differs.
	IgnoreKept bool
	// adopted tells whether an administrator said that an instance is ours; nil: none is.
	Imported func(id gpu.UUID, p gpu.Placement) bool
}

// GPUPlan is what would be done to the hardware of the node.
type GPUPlan struct {
	Steps    []step.Step
	Problems map[gpu.UUID]error // GPUs that cannot become as wanted, and why
}

// PlanGPUs plans the hardware part: MIG modes, instances and compute modes. It is pure.
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
			p.Problems[id] = fmt.Errorf("GPU %d (%s): %w", g.Identity.Index, id, err)
			continue
		}
		p.Steps = append(p.Steps, steps...)
	}
	return p
}

// PlanGPU plans the hardware of one GPU.
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

// planMIG makes the MIG mode and the instances be as wanted.
func planMIG(e *api.GPUSpec, g *observe.GPU, use Usage, a Authority) ([]step.Step, error) {
	target := mig.Target{On: e.Mode == api.ModeMIG}
	if !target.On && !g.MIG.Current && !g.MIG.Pending {
		return nil, nil
	}
	if target.On && e.MIG != nil {
		target.Requests = mig.Requests(e.MIG.Layout...)
	}
	device := mig.Device{MIG: g.MIG, Present: Present(e, g, use)}
	device.InUseBy, device.Unstoppable = inUseBy(g, nil, use)
	if g.Profiles != nil {
		device.Profiles = *g.Profiles
	}
	r, err := mig.PlanDevice(device, target, mig.Options{Force: a.Force, AllowReset: a.AllowReset})
	if err != nil {
		return nil, err
	}
	return r.Steps(g.Identity.UUID), nil
}

// Present says of each instance whether it may be touched.
func Present(e *api.GPUSpec, g *observe.GPU, use Usage) []mig.Present {
	dynamic := e.Mode == api.ModeMIG && e.MIG != nil && e.MIG.Dynamic
	out := make([]mig.Present, 0, len(g.Instances))
	for i := range g.Instances {
		in := &g.Instances[i]
		h, stay := inUseBy(g, in, use)
		// What was made on demand goes when it was idle for long, and what was adopted when somebody says so.
		spare := dynamic || use.Imported != nil && use.Imported(g.Identity.UUID, in.Placement)
		out = append(out, mig.Present{
			Instance: *in, InUse: len(h) > 0, InUseBy: h, Pinned: len(stay) > 0, Keepable: spare, Foreign: !use.Managed(g.Identity.UUID, in),
		})
	}
	return out
}

// KindComputeMode is the kind of step that sets a compute mode.
const KindComputeMode = "gpu.compute-mode"

// ComputeModeArgs are the arguments, and the undo, of a compute mode.
type ComputeModeArgs struct {
	Mode gpu.ComputeMode `json:"mode"`
}

// planComputeMode opens a GPU that time is sliced on to several processes. Under MPS the mode is MPS's to set, and on the
// others it is left as it is.
func planComputeMode(e *api.GPUSpec, g *observe.GPU) []step.Step {
	if e.Mode != api.ModeTimeslice || g.ComputeMode == gpu.ComputeModeUnknown || g.ComputeMode == gpu.ComputeDefault || g.MPS != nil {
		return nil
	}
	return []step.Step{computeModeStep(g, gpu.ComputeDefault, "time slices are for several processes, and it is "+string(g.ComputeMode))}
}

func computeModeStep(g *observe.GPU, mode gpu.ComputeMode, reason string) step.Step {
	return step.Step{
		Kind: KindComputeMode, GPU: string(g.Identity.UUID), Phase: step.Change,
		Args: step.Must(ComputeModeArgs{mode}), Undo: step.Must(ComputeModeArgs{g.ComputeMode}),
		Text: "set the compute mode to " + string(mode), Reason: reason, Disruption: step.None,
	}
}
