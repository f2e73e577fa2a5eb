package status

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/mps"
)

// mpsStatus is the part of the state of a control daemon that does not depend on what it serves; m is nil without one.
func mpsStatus(m *mps.State, bypass string) *api.MPSStatus {
	if m == nil {
		return &api.MPSStatus{State: string(mps.Stopped), Bypass: bypass}
	}
	out := &api.MPSStatus{
		State:    string(m.Phase),
		Unit:     m.Unit,
		PID:      m.PID,
		Version:  m.Version,
		Reason:   cmp.Or(m.Reason, m.Pending),
		Restarts: m.Restarts,
		Bypass:   bypass,
	}
	if m.Start != 0 {
		out.Started = new(time.Now().Add(-procfs.Age(m.Start)).Round(time.Second))
	}
	return out
}

// endedMPS counts the control daemons that have ended.
func (v *Viewer) endedMPS() uint64 {
	if v.MPS == nil {
		return 0
	}
	return v.MPS.Ended()
}

// withoutEndedMPS is a node on which a control daemon that has ended since it was observed does not run.
func withoutEndedMPS(node *observe.Node) *observe.Node {
	out := *node
	out.GPUs = slices.Clone(node.GPUs)
	down := func(m *mps.State) *mps.State {
		if m == nil || m.Phase != mps.Running || m.PID == 0 || procfs.Alive(m.PID, m.Start) {
			return m
		}
		st := *m
		st.Phase, st.PID, st.Start, st.Reason = mps.Restarting, 0, 0, "its control daemon has ended"
		return &st
	}
	for i := range out.GPUs {
		g := &out.GPUs[i]
		g.MPS, g.InstanceMPS = down(g.MPS), slices.Clone(g.InstanceMPS)
		for j := range g.InstanceMPS {
			g.InstanceMPS[j] = down(g.InstanceMPS[j])
		}
	}
	return &out
}

// mps returns the state of the control daemon of a GPU in MPS mode.
func (p *statusInputs) mps(g *observe.GPU) *api.MPSStatus {
	out := mpsStatus(g.MPS, p.desired.Bypass(g.Identity.UUID))
	if g.MPS != nil {
		out.Clients, out.MaxClients = len(clientsOf(g)), g.MPS.MaxClients()
	}
	out.Drained = closing.WireDrain(closing.Drained.At(&p.stored, closing.OnGPU(g.Identity.UUID)))
	return out
}

// instanceMPS returns the state of the control daemon of an instance.
func (p *statusInputs) instanceMPS(g *observe.GPU, in *gpu.Instance) *api.MPSStatus {
	m := g.MPSAt(in.Placement)
	out := mpsStatus(m, p.desired.Bypass(g.Identity.UUID))
	out.Drained = closing.WireDrain(closing.Drained.At(&p.stored, store.Where{GPU: g.Identity.UUID, Instance: in.Placement}))
	if m != nil {
		out.Clients, out.MaxClients = len(clientsIn(g, in)), planner.MaxClientsOf(g, in)
	}
	return out
}

// clientsIn is clientsOf for an instance.
func clientsIn(g *observe.GPU, in *gpu.Instance) []int {
	var pids []int
	for i := range g.Processes {
		if p := &g.Processes[i]; p.Kind == gpu.MPSProcess && p.GI != nil && *p.GI == in.ID {
			pids = append(pids, p.PID)
		}
	}
	if m := g.MPSAt(in.Placement); len(pids) == 0 && m != nil {
		pids = slices.Clone(m.Clients)
	}
	return pids
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
