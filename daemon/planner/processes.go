package planner

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/daemon/state"
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
				Kind:       KindProcessStop,
				GPU:        s.GPU,
				Phase:      step.RevokeAccess,
				Args:       step.Must(ProcessArgs{h.PID, h.Start, h.Name}),
				Text:       "stop " + h.String(),
				Reason:     "it blocks this step: " + s.Text,
				Disruption: step.Running,
				Disturbs:   []step.Subject{h.subject()},
			})
		}
	}
	return out
}

// PlanClosingStops plans the stop of the processes of no lease that use a GPU whose use outside of leases ends: logins are closed, or
// the GPU is managed from now on, or would be if the spec did more than observe. They would count as escaped then. It is pure.
func PlanClosingStops(now, want *state.Desired, node *observe.Node, use Usage) []step.Step {
	closes := func(d *state.Desired, id gpu.UUID) bool { return d.FiltersLogins() && d.Manages(id) }
	var out []step.Step
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if g.Err != nil || !closes(want, id) || now.Enforcing() && closes(now, id) {
			continue
		}
		pids := use.OpenDevices.Users(id)
		for j := range g.Processes {
			pids = append(pids, g.Processes[j].PID)
		}
		slices.Sort(pids)
		for _, pid := range slices.Compact(pids) {
			h := use.Process(g.ControlDaemons(), pid)
			if h.Decision != Stop || h.Lease != "" || h.Start == 0 {
				continue
			}
			out = append(out, step.Step{
				Kind:       KindProcessStop,
				GPU:        string(id),
				Phase:      step.RevokeAccess,
				Args:       step.Must(ProcessArgs{h.PID, h.Start, h.Name}),
				Text:       "stop " + h.String(),
				Reason:     "it uses the GPU without a lease, and node.isolation.logins is closed",
				Disruption: step.Running,
				Disturbs:   []step.Subject{h.subject()},
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
