package mig

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// The kinds of step that Handler carries out.
const (
	KindMode    = "mig.mode"
	KindDestroy = "mig.destroy"
	KindCreate  = "mig.create"
)

// ModeArgs are the arguments, and the undo, of mig.mode.
type ModeArgs struct {
	On    bool `json:"on"`
	Reset bool `json:"reset,omitempty"` // a reset was allowed
}

// InstanceArgs are the arguments, and the undo, of mig.create and mig.destroy: one instance by what and where it is, never by its id.
type InstanceArgs struct {
	Placed
	// Orphan: the instance to destroy has no compute instance (Compute empty then means none, not one that takes all).
	Orphan bool `json:"orphan,omitempty"`
	// Imported: somebody else made it, and an administrator said that it is ours. Records of versions that did not write
	// it have none.
	Imported bool `json:"imported,omitempty"`
}

// Steps words the plan as steps of one GPU: mode on, destroy, complete, create, mode off. IDs are left to whoever puts
// the change together.
func (r Result) Steps(id gpu.UUID) []step.Step {
	var out []step.Step
	add := func(s step.Step) {
		s.GPU, s.Phase = string(id), step.Change
		out = append(out, s)
	}
	if r.Mode != nil && r.Mode.On {
		add(r.Mode.step())
	}
	for _, b := range r.Destroy {
		placed := placedOf(r.profiles, b.Instance)
		args := InstanceArgs{Placed: placed, Orphan: len(b.Compute) == 0}
		s := step.Step{
			Kind: KindDestroy, Args: step.Must(args), Undo: step.Must(args),
			Text: "destroy " + placed.String(), Reason: "the layout does not have it, or needs its room", Disruption: step.Idle,
		}
		if b.InUse {
			s.Disruption, s.Disturbs = step.Running, slices.Clone(b.InUseBy)
		}
		add(s)
	}
	for _, p := range r.Complete {
		// Undo is empty: taking the compute instances away again would only bring a defect back.
		reason := "it lacks compute instances"
		if r.Imported {
			reason = "it is imported, and compute instances are missing"
		}
		add(step.Step{
			Kind: KindCreate, Args: step.Must(InstanceArgs{Placed: p, Imported: r.Imported}), Text: "complete " + p.String(),
			Reason: reason, Disruption: step.None,
		})
	}
	for _, p := range r.Create {
		args := step.Must(InstanceArgs{Placed: p})
		add(step.Step{
			Kind: KindCreate, Args: args, Undo: args, Text: "create " + p.String(),
			Reason: "the layout has it, the GPU has not", Disruption: step.None,
		})
	}
	if r.Mode != nil && !r.Mode.On {
		add(r.Mode.step())
	}
	return out
}

func (m *Mode) step() step.Step {
	s := step.Step{
		Kind: KindMode, Args: step.Must(ModeArgs{On: m.On, Reset: m.Reset}), Undo: step.Must(ModeArgs{On: m.Was, Reset: m.Reset}),
		Text: "turn " + onOff(m.On) + " MIG mode", Reason: fmt.Sprintf("the spec has MIG %s, the GPU has it %s", onOff(m.On), onOff(m.Was)), Disruption: step.Idle,
	}
	if m.Reset {
		s.Text += ", for which the driver resets the GPU"
	}
	if len(m.Stops) != 0 {
		s.Disruption, s.Disturbs = step.Running, slices.Clone(m.Stops)
	}
	return s
}
