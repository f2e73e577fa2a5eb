package status

import (
	"cmp"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/mps"
)

// mps returns the state of the control daemon of a GPU in MPS mode.
func (p *statusInputs) mps(g *observe.GPU) *api.MPSStatus {
	out := &api.MPSStatus{State: string(mps.Stopped), Bypass: p.desired.Bypass(g.Identity.UUID)}
	if st := g.MPS; st != nil {
		out.State, out.Unit, out.PID, out.Version, out.Reason = string(st.Phase), st.Unit, st.PID, st.Version, st.Reason
		if out.Reason == "" {
			out.Reason = st.Pending
		}
		out.Clients, out.MaxClients, out.Restarts = len(clientsOf(g)), st.MaxClients(), st.Restarts
		if at := st.Started(); !at.IsZero() {
			out.Started = &at
		}
	}
	if d, ok := p.stored.DrainedMPS[g.Identity.UUID]; ok {
		wire := api.MPSDrain(d)
		out.Drained = &wire
	}
	return out
}

// instanceMPS returns the state of the control daemon of an instance, with the most clients that it has; m is nil without one.
func instanceMPS(g *observe.GPU, in *gpu.Instance, m *mps.State, maxClients int) *api.MPSStatus {
	out := &api.MPSStatus{State: string(mps.Stopped), Bypass: api.BypassReport}
	if m == nil {
		return out
	}
	out.State, out.Unit, out.PID, out.Version, out.Reason, out.Restarts = string(m.Phase), m.Unit, m.PID, m.Version, cmp.Or(m.Reason, m.Pending), m.Restarts
	out.MaxClients = maxClients
	if at := m.Started(); !at.IsZero() {
		out.Started = &at
	}
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
