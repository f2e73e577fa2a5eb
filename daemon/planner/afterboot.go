package planner

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// BootHint is what to do about a GPU whose MIG mode only a boot makes current.
const BootHint = "'systemctl reboot' makes the mode current, and the rest is carried out after it without another command"

// TakeAwaitingBoot removes the steps of the GPUs that wait for a boot, and their problems, unless the spec could not be reached after
// it either.
func (p *GPUPlan) TakeAwaitingBoot(awaiting map[gpu.UUID]bool, want *state.Desired, n *observe.Node, use Usage) {
	p.Steps = slices.DeleteFunc(p.Steps, func(s step.Step) bool { return awaiting[gpu.UUID(s.GPU)] })
	for id := range awaiting {
		delete(p.Problems, id)
		delete(p.Resets, id)
		g, _ := n.GPU(id)
		var inUse *mig.InUse
		// Whether it is in use now does not matter: no use outlives the boot.
		if _, err := PlanGPU(want.GPUs[id], g, use, Authority{Force: true, AllowReset: true}); err != nil && !errors.As(err, &inUse) {
			p.Problems[id] = problem(g, err)
		}
	}
}

// AwaitBootWarnings name the GPUs that have no step because they wait for a boot.
func AwaitBootWarnings(awaiting map[gpu.UUID]bool, n *observe.Node) []string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(awaiting)) {
		if g, ok := n.GPU(id); ok {
			out = append(out, fmt.Sprintf("%s waits for a boot of the host: %s", ShortName(n, id), pendingText(g)))
		}
	}
	return out
}

// pendingText says which mode the driver keeps, and how to go on.
func pendingText(g *observe.GPU) string {
	mode := "off"
	if g.MIG.Pending {
		mode = "on"
	}
	return "MIG mode " + mode + " is pending; " + BootHint
}
