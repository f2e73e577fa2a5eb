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
	Reset bool `json:"reset,omitempty"` // a reset is allowed
}

// InstanceArgs are the arguments, and the undo, of mig.create and mig.destroy: one instance by its profile and placement,
// never by its id.
type InstanceArgs struct {
	Placed
	// Orphan: the instance to destroy has no compute instance (Compute empty then means none, not one that takes all).
	Orphan bool `json:"orphan,omitempty"`
	// Imported: the instance was not created by gpushare, and an administrator imported it. Records of older versions do not
	// have it.
	Imported bool `json:"imported,omitempty"`
}

// Steps converts the plan to steps of one GPU: mode on, compare, destroy, complete, create, mode off. The caller sets their IDs.
func (r Result) Steps(id gpu.UUID) []step.Step {
	var out []step.Step
	add := func(s step.Step) {
		s.GPU, s.Phase = string(id), step.Change
		out = append(out, s)
	}
	if r.Mode != nil && r.Mode.On {
		add(r.Mode.step())
		if r.Assumed && len(r.Create) > 0 {
			add(compareStep(CompareArgs{Create: r.Create, ByID: r.recorded}))
		}
	}
	for _, b := range r.Destroy {
		placed := placedOf(r.profiles, b.Instance)
		args := InstanceArgs{Placed: placed, Orphan: len(b.Compute) == 0}
		s := step.Step{
			Kind: KindDestroy, Args: step.Must(args), Undo: step.Must(args),
			Text: "destroy " + placed.String(), Reason: "it is not in the layout, or its slices are needed", Disruption: step.Idle,
		}
		if why := Irreversible(b.Instance, nil); why != "" {
			s.Undo, s.Irreversible = nil, "it could not be created again, because "+why
		}
		if b.InUse {
			s.Disruption, s.Disturbs = step.Running, slices.Clone(b.InUseBy)
		}
		add(s)
	}
	for _, p := range r.Complete {
		// Undo is empty: to destroy the compute instances again would only restore a defect.
		reason := "compute instances are missing"
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
			Reason: "missing instance", Disruption: step.None,
		})
	}
	if r.Mode != nil && !r.Mode.On {
		add(r.Mode.step())
	}
	return out
}

func (m *Mode) step() step.Step {
	s := step.Step{
		Kind:       KindMode,
		Args:       step.Must(ModeArgs{On: m.On, Reset: m.Reset}),
		Undo:       step.Must(ModeArgs{On: m.Was, Reset: m.Reset}),
		Text:       "turn " + onOff(m.On) + " MIG mode",
		Reason:     fmt.Sprintf("the spec has MIG %s, the GPU has MIG %s", onOff(m.On), onOff(m.Was)),
		Disruption: step.Idle,
	}
	if m.Reset {
		s.Text += " (resets the GPU)"
	}
	if len(m.Stops) != 0 {
		s.Disruption, s.Disturbs = step.Running, slices.Clone(m.Stops)
	}
	return s
}
