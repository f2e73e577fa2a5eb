package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// mostNamed is how many leases and processes a warning names; it counts the others.
const mostNamed = 8

// WouldRefuse says why an apply with enforce: on would be refused, for a spec that only observes: it changes nothing, so it is
// not refused itself. problems are those of the GPUs, without authority; steps are what would be done.
func WouldRefuse(problems map[gpu.UUID]error, steps []step.Step, a Authority) []string {
	const prefix = "with enforce: on this would be refused: "
	var out []string
	for _, id := range slices.Sorted(maps.Keys(problems)) {
		out = append(out, prefix+problems[id].Error())
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
