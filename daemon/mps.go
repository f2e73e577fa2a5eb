package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/mps"
)

// mpsEnvironment is what joins a lease to the control daemon of its GPU. Its share is a ceiling for each of its
// processes; its memory limit holds for each process by itself, and for the grant by the ladder.
func (d *Policy) mpsEnvironment(ctx context.Context, l *lease.Lease) (map[string]string, error) {
	id := l.Place.GPUs[0]
	if st := d.mps.Observe(ctx, id); !st.Healthy() {
		why := "it does not run"
		if st != nil && st.Reason != "" {
			why = st.Reason
		}
		return nil, &api.Error{Kind: api.KindUnavailable, Message: fmt.Sprintf("cannot join MPS on GPU %s: %s", id, why), Hint: "'gpushare mps list' shows it; an administrator can try 'gpushare gpu retry'"}
	}
	limits := mps.Limits{}
	if s := l.Terms.Spec.MPS; s != nil {
		limits.Threads = float64(s.Share)
		if s.Memory != nil {
			limits.Memory = uint64(*s.Memory)
		}
	}
	list, err := d.mps.Environment(id, limits)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, kv := range list {
		k, v, _ := strings.Cut(kv, "=")
		out[k] = v
	}
	return out, nil
}

// mps shows the control daemon of a GPU in MPS mode.
func (p *picture) mps(g *observe.GPU) *api.MPSStatus {
	out := &api.MPSStatus{State: string(mps.Stopped), Enforce: "report"}
	if e := p.desired.gpus[g.Identity.UUID]; e != nil && e.MPS != nil && e.MPS.Enforce != "" {
		out.Enforce = e.MPS.Enforce
	}
	if st := g.MPS; st != nil {
		out.State, out.Unit, out.PID, out.Version, out.Reason = string(st.Phase), st.Unit, st.PID, st.Version, st.Reason
		out.Clients = len(clientsOf(g))
	}
	return out
}

// clientsOf are the MPS clients that the driver lists, or else those that the control daemon knows.
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

// judgeMPS reports control daemons that do not do their work.
func (d *Converger) judgeMPS(want *desired, node *observe.Node) {
	bad := map[string]api.Condition{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if want.mode(id) != api.ModeMPS || !want.enforcing() || g.MPS.Healthy() || g.MPS == nil && d.state.Changing() != nil {
			continue
		}
		c := api.Condition{GPU: string(id), Message: fmt.Sprintf("GPU %d: MPS does not run", g.Identity.Index), Hint: "it is started again by itself; 'gpushare mps list' shows why it ended"}
		if g.MPS != nil {
			c.Message = fmt.Sprintf("GPU %d: MPS is %s: %s", g.Identity.Index, g.MPS.Phase, g.MPS.Reason)
			if g.MPS.Phase == mps.Unresponsive {
				c.Hint = "it is left alone, because a restart stops its clients: end them, then 'gpushare gpu retry'"
			}
		}
		bad[string(id)] = c
	}
	d.Conditions.replace("mps", bad)
}

// servesMPS tells whether a process is a server of an MPS control daemon of ours. The control daemon is asked for its
// servers only now and then; they are its children. Their name tells nothing: a tenant chooses what his is called.
func servesMPS(m *mps.State, p procfs.Stat) bool {
	return m != nil && (slices.Contains(m.Servers, p.PID) || m.PID > 0 && p.PPID == m.PID)
}

// isServingMPS is servesMPS for a process that is given by its pid. One that ended serves nobody.
func isServingMPS(m *mps.State, pid int) bool {
	if m == nil {
		return false
	}
	p, err := procfs.Read(pid)
	return err == nil && servesMPS(m, p)
}
