package status

import (
	"cmp"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

// mpsStatus is the part of the state of a control daemon that does not depend on what it serves; m is nil without one.
func mpsStatus(m *mps.State, bypass string) *api.MPSStatus {
	if m == nil {
		return &api.MPSStatus{State: string(mps.Stopped), Bypass: bypass}
	}
	out := &api.MPSStatus{
		State: string(m.Phase), Unit: m.Unit, PID: m.PID, Version: m.Version, Reason: cmp.Or(m.Reason, m.Pending), Restarts: m.Restarts, Bypass: bypass,
	}
	if at := m.Started(); !at.IsZero() {
		out.Started = &at
	}
	return out
}

// mps returns the state of the control daemon of a GPU in MPS mode.
func (p *statusInputs) mps(g *observe.GPU) *api.MPSStatus {
	out := mpsStatus(g.MPS, p.desired.Bypass(g.Identity.UUID))
	if g.MPS != nil {
		out.Clients, out.MaxClients = len(clientsOf(g)), g.MPS.MaxClients()
	}
	if d, ok := p.stored.DrainedMPS[g.Identity.UUID]; ok {
		wire := api.MPSDrain(d)
		out.Drained = &wire
	}
	return out
}

// instanceMPS returns the state of the control daemon of an instance, with the most clients that it has; m is nil without one.
func instanceMPS(g *observe.GPU, in *gpu.Instance, m *mps.State, maxClients int) *api.MPSStatus {
	out := mpsStatus(m, api.BypassReport)
	if m == nil {
		return out
	}
	out.MaxClients = maxClients
	listed := 0
	for i := range g.Processes {
		if p := &g.Processes[i]; p.Kind == gpu.MPSProcess && p.GI != nil && *p.GI == in.ID {
			listed++
		}
	}
	if out.Clients = listed; listed == 0 {
		out.Clients = len(m.Clients)
	}
	return out
}

// clientsOf returns the MPS clients that the driver lists, or if it lists none those that the control daemon knows.
func clientsOf(g *observe.GPU) []int {
	var pids []int
	for i := range g.Processes {
		if g.Processes[i].Kind == gpu.MPSProcess {
			pids = append(pids, g.Processes[i].PID)
		}
	}
	if len(pids) == 0 && g.MPS != nil {
		pids = slices.Clone(g.MPS.Clients)
	}
	return pids
}
