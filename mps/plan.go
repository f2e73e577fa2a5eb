package mps

import (
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// The kinds of step.
const (
	KindStart = "mps.start"
	KindStop  = "mps.stop"
)

// StartArgs is what mps.start does: MPS runs on the GPU with these settings. A control daemon with others is replaced.
type StartArgs struct {
	Settings Settings `json:"settings"`
}

// StartUndo is what was there before; nil for nothing.
type StartUndo struct {
	Previous *Settings `json:"previous,omitempty"`
}

// StopArgs is what mps.stop does: MPS does not run on the GPU, and its compute mode is as it was before.
type StopArgs struct {
	GPU gpu.UUID `json:"gpu"`
}

// StopUndo is what ran before; nil for a daemon that was not ours.
type StopUndo struct {
	Settings *Settings `json:"settings,omitempty"`
}

// Observed is what planning needs to know of one GPU.
type Observed struct {
	State     *State
	Processes []gpu.Process // of the GPU: MPS clients are among them
}

// Plan gives the steps from what is to what is desired, for the GPUs in either; by GPU, in order of their UUIDs. A control
// daemon that does not answer is left alone: to restart it stops its clients, and it is reported instead. Step ids are 0.
func Plan(desired map[gpu.UUID]Settings, observed map[gpu.UUID]Observed) []step.Step {
	ids := map[gpu.UUID]bool{}
	for id := range desired {
		ids[id] = true
	}
	for id := range observed {
		ids[id] = true
	}
	var steps []step.Step
	for _, id := range slices.Sorted(keys(ids)) {
		set, isDesired := desired[id]
		o := observed[id]
		switch {
		case isDesired:
			if reason, keepsServer := startReason(set, o.State); reason != "" {
				steps = append(steps, startStep(set, o, reason, keepsServer))
			}
		case o.State != nil:
			steps = append(steps, stopStep(id, o))
		}
	}
	return steps
}

func keys(m map[gpu.UUID]bool) func(func(gpu.UUID) bool) {
	return func(yield func(gpu.UUID) bool) {
		for id := range m {
			if !yield(id) {
				return
			}
		}
	}
}

// startReason says why there is something to do, empty when there is not. It is gentle when nobody's server is touched.
func startReason(set Settings, s *State) (reason string, keepsServer bool) {
	switch {
	case s == nil:
		return "MPS is wanted and does not run", true
	case s.Settings == nil:
		return "the control daemon that runs was not started by us", false
	case *s.Settings != set:
		return "MPS runs with other settings", s.Phase == Running && s.Settings.sameServer(set)
	case s.Phase == Failed || s.Phase == Stopped:
		return "MPS is wanted and does not run: " + s.Reason, len(s.Leftovers) == 0
	case s.Drift:
		return s.Reason, true
	}
	return "", true
}

func startStep(set Settings, o Observed, reason string, keepsServer bool) step.Step {
	text := "start MPS"
	if set.Strict {
		text += " and set the compute mode to exclusive-process"
	}
	var undo StartUndo
	if o.State != nil {
		undo.Previous = o.State.Settings
		if keepsServer && o.State.Phase == Running {
			text = "set what MPS should be again"
		} else if o.State.Phase != Failed {
			text = "restart MPS"
		}
	}
	s := step.Step{
		Kind: KindStart, GPU: string(set.GPU), Phase: step.GrantAccess,
		Args: step.Must(StartArgs{Settings: set}), Undo: step.Must(undo),
		Text: text, Reason: reason, Disruption: step.None,
	}
	if !keepsServer {
		s.Disruption, s.Disturbs = disturbedClients(o)
	}
	return s
}

func stopStep(id gpu.UUID, o Observed) step.Step {
	s := step.Step{
		Kind: KindStop, GPU: string(id), Phase: step.RevokeAccess,
		Args: step.Must(StopArgs{GPU: id}), Undo: step.Must(StopUndo{Settings: o.State.Settings}),
		Text: "stop MPS", Reason: "MPS runs and is not wanted",
	}
	s.Disruption, s.Disturbs = disturbedClients(o)
	return s
}

// disturbedClients says who would lose his context: the clients that the control daemon knew and those that the driver lists.
func disturbedClients(o Observed) (step.Disruption, []step.Subject) {
	pids := map[int]bool{}
	for _, pid := range o.State.Clients {
		pids[pid] = true
	}
	for _, p := range o.Processes {
		if p.Kind == gpu.MPSProcess {
			pids[p.PID] = true
		}
	}
	if len(pids) == 0 {
		return step.Idle, nil
	}
	var list []int
	for pid := range pids {
		list = append(list, pid)
	}
	slices.Sort(list)
	var clients []step.Subject
	for _, pid := range list {
		clients = append(clients, step.ProcessOf(pid, ""))
	}
	return step.Running, clients
}
