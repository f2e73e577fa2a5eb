package status

import (
	"strconv"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
	"github.com/gpushare/gpushare/quota"
)

// explainClients reports what the MPS server of a lease allows each client, whatever the environment of a process says: the defaults of
// its control daemon as they were read back. They are limits of one process, never of the grant.
func (v *Viewer) explainClients(l *lease.Lease) []api.Rule {
	if len(l.Place.GPUs) != 1 {
		return nil
	}
	g, ok := v.Observer.Last().GPU(l.Place.GPUs[0])
	if !ok {
		return nil
	}
	out := clientRules(l, g)
	for i := range out {
		out[i] = v.unlessObserving(out[i])
	}
	return out
}

// clientRules are the rules of explainClients on a node that enforces.
func clientRules(l *lease.Lease, g *observe.GPU) []api.Rule {
	if l.Terms.Kind() != api.ModeMPS || g.MPS == nil || g.MPS.Settings == nil {
		return nil
	}
	var out []api.Rule
	add := func(what, limit string) {
		r := api.Rule{What: what + " per client", Desired: limit + " for each process that is a client"}
		switch can, _ := g.MPS.Program.Abilities(); {
		case !g.MPS.Healthy():
			r.Reason = "the MPS control daemon is " + string(g.MPS.Phase) + ": " + g.MPS.Reason
		case !can.OwnerOnly:
			r.Advisory, r.Reason = true, "advisory: in this version each client may change the default of the MPS control daemon"
		case g.MPS.Pending != "":
			r.Reason = "new clients do not get it yet: " + g.MPS.Pending
		default:
			r.Enforced, r.By = true, "the default of the MPS control daemon, read back: not for the processes of the lease together"
		}
		out = append(out, r)
	}
	if p := g.MPS.Settings.Threads; p > 0 {
		add("threads", strconv.FormatFloat(p, 'f', -1, 64)+"%")
	}
	if b := g.MPS.Settings.Memory; b > 0 {
		add("GPU memory", api.Bytes(b).Short())
	}
	return out
}

// whyUnmeasured returns why a limit of GPU memory that is enforced by sampling is not enforced now: the driver does not say what the
// lease uses. Empty if it does.
func (v *Viewer) whyUnmeasured(w *api.Lease, c quota.MemoryChoice) string {
	if !c.Enforced || c.Hard || c.Backend == quota.BackendDriver || !w.GPUMemory.Unknown {
		return ""
	}
	if v.clientsOf(w) > 0 {
		return "what it uses is not known: the driver does not list its clients of MPS"
	}
	return "what it uses is not known: the driver has not reported the memory of its processes"
}

// clientsOf counts the clients of MPS that a lease has, as its control daemon has them.
func (v *Viewer) clientsOf(l *api.Lease) (n int) {
	if l.Kind != api.ModeMPS {
		return 0
	}
	count := v.State.MPSClients()
	for _, id := range l.GPUs {
		n += count[gpu.UUID(id)][l.ID]
	}
	return n
}
