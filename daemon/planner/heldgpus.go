package planner

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// Unanswered are the managed GPUs that do not answer, by index. A change of the node leaves them as they are: it is held back
// by none of them, and no step is about them.
func Unanswered(want *state.Desired, node *observe.Node) []api.HeldGPU {
	var out []api.HeldGPU
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.Err == nil || !want.Manages(g.Identity.UUID) {
			continue
		}
		r := Remedies{Node: node}
		out = append(out, api.HeldGPU{
			GPU:     string(g.Identity.UUID),
			Index:   g.Identity.Index,
			Reason:  Cause(g.Err),
			Command: "gpushare gpu retry " + r.name(g.Identity.UUID),
		})
	}
	return append(out, state.Missing(want, node)...)
}

// Cause is the reason of an error of the driver without the call that failed.
func Cause(err error) string {
	if e, ok := errors.AsType[*gpu.Error](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

// TakeUnanswered removes the GPUs that do not answer from the problems of a plan, and returns them. The others can be changed.
func (p *GPUPlan) TakeUnanswered(want *state.Desired, node *observe.Node) []api.HeldGPU {
	held := Unanswered(want, node)
	maps.DeleteFunc(p.Problems, func(id gpu.UUID, _ error) bool { return containsGPU(held, id) })
	maps.DeleteFunc(p.Resets, func(id gpu.UUID, _ error) bool { return containsGPU(held, id) })
	return held
}

// WithoutHeld removes the steps that are about held GPUs.
func WithoutHeld(steps []step.Step, held []api.HeldGPU) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool { return s.GPU != "" && containsGPU(held, gpu.UUID(s.GPU)) })
}

func containsGPU(held []api.HeldGPU, id gpu.UUID) bool {
	return slices.ContainsFunc(held, func(h api.HeldGPU) bool { return h.GPU == string(id) })
}

// HeldText names the GPUs that a change left as they are, with the reasons.
func HeldText(held []api.HeldGPU) string {
	var parts []string
	for i := range held {
		parts = append(parts, fmt.Sprintf("%s is held, because it does not answer: %s", held[i].Name(), held[i].Reason))
	}
	return strings.Join(parts, "; ")
}

// HeldHint is what to do about them.
func HeldHint(held []api.HeldGPU) string {
	if len(held) == 0 {
		return ""
	}
	return "a held GPU is changed when it answers again; '" + held[0].Command + "' tries it"
}
