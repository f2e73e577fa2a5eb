package planner

import (
	"encoding/json"
	"fmt"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mig"
)

// KindProcessStop is the kind of step that ends a process of no lease. It has no undo.
const KindProcessStop = "process.stop"

// ProcessArgs are the arguments of such a step.
type ProcessArgs struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since boot: a later process with the same pid is not stopped
	Name  string `json:"name"`
}

// PlanProcessStops plans the stop of the processes of no lease that block the GPU steps. Each stop is a step of its GPU, so
// that a process that does not end fails only the change of that GPU. Without force no such GPU step is planned. It is pure.
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
				Text: "stop " + h.String(), Reason: "it blocks this step: " + s.Text, Disruption: step.Running, Disturbs: []step.Subject{h.subject()},
			})
		}
	}
	return out
}

// affectedBy are the processes that lose a device by a step of a GPU.
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
