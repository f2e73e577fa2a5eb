package mps

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/step"
)

// The kinds of step.
const (
	KindStart = "mps.start"
	KindStop  = "mps.stop"
)

// StartArgs is for mps.start: MPS runs on the device with these settings. A control daemon with other settings is replaced.
type StartArgs struct {
	Settings Settings `json:"settings"`
	// KeepServer: no control daemon or server that runs is stopped, because its clients were not named when the step was planned.
	KeepServer bool `json:"keep_server,omitempty"`
}

// StartUndo is what ran before; nil for nothing.
type StartUndo struct {
	Previous *Settings `json:"previous,omitempty"`
}

// StopArgs is for mps.stop: MPS does not run on the device, and its previous compute mode is restored.
type StopArgs struct {
	GPU      gpu.UUID      `json:"gpu"`
	Instance gpu.Placement `json:"instance,omitzero"`
}

// Device is what they are for.
func (a StopArgs) Device() Device { return Device(a) }

// StopUndo is what ran before; nil for a daemon that is not managed by gpushare.
type StopUndo struct {
	Settings *Settings `json:"settings,omitempty"`
}

// Observed is the observed state of one device.
type Observed struct {
	State       *State
	ComputeMode gpu.ComputeMode // empty if it is not known
	Processes   []gpu.Process   // of the device, with the MPS clients
}

// Plan returns the steps from the observed to the desired state, in order of the GPUs' UUIDs and of placements. A control daemon that
// does not answer is restarted, which disturbs its clients. Step ids are 0.
func Plan(desired map[Device]Settings, observed map[Device]Observed) []step.Step {
	ids := map[Device]bool{}
	for id := range desired {
		ids[id] = true
	}
	for id := range observed {
		ids[id] = true
	}
	var steps []step.Step
	for _, id := range slices.SortedFunc(maps.Keys(ids), Device.Compare) {
		set, isDesired := desired[id]
		o := observed[id]
		switch {
		case isDesired:
			if reason, keepsServer := startReason(set, o); reason != "" {
				steps = append(steps, startStep(set, o, reason, keepsServer))
			}
		case o.State != nil:
			steps = append(steps, stopStep(id, o))
		}
	}
	return steps
}

// otherMode reports whether bypass is to be denied and the compute mode, which any administrator may set, does not deny it.
func (o Observed) otherMode(set Settings) bool {
	return set.DenyBypass && o.ComputeMode != gpu.ComputeModeUnknown && o.ComputeMode != gpu.ComputeExclusiveProcess
}

// startReason returns why a start step is needed, empty when it is not. keepsServer: no running server is stopped.
func startReason(set Settings, o Observed) (reason string, keepsServer bool) {
	switch s := o.State; {
	case s == nil:
		return "MPS is desired but does not run", true
	case s.Down(), s.Phase == Stopped:
		return "MPS is desired but does not run: " + s.Reason, len(s.Leftovers) == 0
	case s.Settings == nil:
		return "the running control daemon is not managed by gpushare", false
	case *s.Settings != set:
		return "MPS runs with other settings", s.Phase == Running && s.Settings.MIG == set.MIG
	case s.Phase == Unresponsive && s.Fault != nil && s.Fault.Stuck:
		return s.Reason, false
	case s.Phase == Unresponsive:
		return "MPS does not answer: " + s.Reason, false
	case s.Drift:
		return s.Reason, true
	case s.Phase == Running && o.otherMode(set):
		return fmt.Sprintf("the compute mode is %s, it should be %s", o.ComputeMode, gpu.ComputeExclusiveProcess), true
	case s.LogSilent:
		return "its log is silent: something wrote to it that is no record", false
	}
	return "", true
}

func startStep(set Settings, o Observed, reason string, keepsServer bool) step.Step {
	text := "start MPS"
	if set.DenyBypass {
		text += " and set the compute mode to exclusive-process"
	}
	var undo StartUndo
	if o.State != nil {
		if !o.State.Down() && o.State.Phase != Stopped {
			undo.Previous = o.State.Settings
		}
		if keepsServer && o.State.Phase == Running {
			text = o.correction(set)
		} else if !o.State.Down() && o.State.Phase != Stopped {
			text = "restart MPS"
		}
	}
	s := step.Step{
		Kind: KindStart, GPU: string(set.GPU), Phase: step.GrantAccess,
		Args: step.Must(StartArgs{Settings: set, KeepServer: keepsServer}), Undo: step.Must(undo),
		Text: text, Reason: reason, Disruption: step.None,
	}
	if !keepsServer {
		s.Disruption, s.Disturbs = disturbedClients(o)
	}
	return s
}

func stopStep(d Device, o Observed) step.Step {
	s := step.Step{
		Kind: KindStop, GPU: string(d.GPU), Phase: step.RevokeAccess,
		Args: step.Must(StopArgs(d)), Undo: step.Must(StopUndo{Settings: o.State.Settings}),
		Text: "stop MPS", Reason: "MPS runs but is not desired",
	}
	s.Disruption, s.Disturbs = disturbedClients(o)
	return s
}

// disturbedClients lists the processes that would lose their context: the clients that the control daemon or the driver knows.
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

// DeviceOf is the device of a step of this package.
func DeviceOf(s *step.Step) (Device, bool) {
	switch s.Kind {
	case KindStart:
		a, err := Decode[StartArgs](s.Args)
		return a.Settings.Device(), err == nil
	case KindStop:
		a, err := Decode[StopArgs](s.Args)
		return a.Device(), err == nil
	}
	return Device{}, false
}

// Decode decodes the arguments or the undo of a step of this package.
func Decode[T any](b []byte) (T, error) {
	var v T
	if len(b) == 0 {
		return v, nil
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("cannot read the arguments of an MPS step: %w", err)
	}
	return v, nil
}
