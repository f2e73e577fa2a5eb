package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/internal/step"
)

// mostNamed is how many leases and processes a warning names; it counts the others.
const mostNamed = 8

// WouldRefuse says why an apply with enforce: on would be refused, for a spec that only observes: it changes nothing, so it is
// not refused itself. hardware is planned without authority; steps are what would be done.
func WouldRefuse(hardware *GPUPlan, steps []step.Step, a Authority) []string {
	const prefix = "with enforce: on this would be refused: "
	var out []string
	for _, id := range slices.Sorted(maps.Keys(hardware.Problems)) {
		out = append(out, prefix+hardware.Problems[id].Error())
	}
	for _, id := range slices.Sorted(maps.Keys(hardware.Resets)) {
		out = append(out, "with enforce: on this would need a permission: "+hardware.Resets[id].Error())
	}
	var disturbed []step.Subject
	for i := range steps {
		if steps[i].Disruption == step.Running {
			disturbed = step.Merge(disturbed, steps[i].Disturbs)
		}
	}
	if len(disturbed) > 0 && !a.Force {
		named := step.Texts(disturbed)
		more := ""
		if len(named) > mostNamed {
			named, more = named[:mostNamed], fmt.Sprintf(" and %d more", len(named)-mostNamed)
		}
		out = append(out, prefix+"it would disturb "+strings.Join(named, ", ")+more)
	}
	return out
}
