package mps

import "github.com/gpushare/gpushare/internal/step"

// KindRestart is a restart that an administrator requests, also of a control daemon that works.
const KindRestart = "mps.restart"

// RestartArgs is for mps.restart: another control daemon than the named one runs with these settings.
type RestartArgs struct {
	Settings Settings `json:"settings"`
	PID      int      `json:"pid,omitempty"`   // of the control daemon that is replaced; 0 if none runs
	Start    uint64   `json:"start,omitempty"` // clock ticks since boot
}

// RestartStep plans the restart of MPS on a GPU. It disturbs the clients.
func RestartStep(set Settings, o Observed) step.Step {
	args := RestartArgs{Settings: set}
	if o.State == nil {
		o.State = &State{}
	}
	args.PID, args.Start = o.State.PID, o.State.Start
	s := step.Step{
		Kind: KindRestart, GPU: string(set.GPU), Phase: step.GrantAccess, Args: step.Must(args),
		Text: "restart MPS", Reason: "an administrator requests it",
	}
	s.Disruption, s.Disturbs = disturbedClients(o)
	return s
}
