package planner

import (
	"encoding/json"
	"fmt"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// KindProcessStop is the kind of step that ends a process of no lease. Nothing brings it back: it has no undo.
const KindProcessStop = "process.stop"

// ProcessArgs are its arguments.
type ProcessArgs struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since boot: another process of that number is not meant
	Name  string `json:"name"`
}

// PlanProcessStops ends the processes of no lease that the hardware steps would stop. They are steps of the GPU, so that
// one that does not end keeps only that GPU from changing. Without force no such hardware step is planned. It is pure.
func PlanProcessStops(hardware []step.Step, node *observe.Node, use Usage) []step.Step {
	var out []step.Step
	seen := map[string]bool{}
	for i := range hardware {
		s := &hardware[i]
		g, ok := node.GPU(gpu.UUID(s.GPU))
		if !ok || s.Disruption != step.Running {
			continue
		}
		for _, h := range affectedBy(s, g, use) {
			key := fmt.Sprint(s.GPU, h.PID)
			if h.Decision != Stop || h.Lease != "" || h.Start == 0 || seen[key] {
				continue
			}
			seen[key] = true
			out = append(out, step.Step{
				Kind: KindProcessStop, GPU: s.GPU, Phase: step.RevokeAccess, Args: step.Must(ProcessArgs{h.PID, h.Start, h.Name}),
				Text: "stop " + h.String(), Reason: "it is in the way: " + s.Text, Disruption: step.Running, Disturbs: []step.Subject{h.subject()},
			})
		}
	}
	return out
}

// affectedBy are the processes that a step of a GPU takes something away from.
func affectedBy(s *step.Step, g *observe.GPU, use Usage) []DeviceUser {
	switch s.Kind {
	case mig.KindMode:
		return BlockingProcesses(g, nil, use)
	case mig.KindDestroy:
		var args mig.InstanceArgs
		if json.Unmarshal(s.Args, &args) != nil {
			return nil
		}
		for i := range g.Instances {
			if in := &g.Instances[i]; in.Placement == args.Placement && in.ProfileID == args.ProfileID {
				return BlockingProcesses(g, in, use)
			}
		}
	}
	return nil
}
