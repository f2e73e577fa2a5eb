package converge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// updateMPSConditions reports control daemons that do not run or do not answer.
func (cv *Converger) updateMPSConditions(want *state.Desired, node *observe.Node) {
	bad := map[string]api.Condition{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if want.WantsMPS(id) && g.MPS.Healthy() && g.MPS.LogSilent {
			bad[string(id)] = api.Condition{
				GPU: string(id), Message: fmt.Sprintf("GPU %d: the log of MPS is silent: a fault of a client would not be named", g.Identity.Index), Hint: restartHint(g),
			}
		}
		if !want.WantsMPS(id) || g.MPS.Healthy() || g.MPS == nil && cv.State.Changing() != nil {
			continue
		}
		c := api.Condition{GPU: string(id), Message: fmt.Sprintf("GPU %d: %s", g.Identity.Index, planner.MPSReason(g.MPS))}
		c.Hint = mpsHint(g)
		bad[string(id)] = c
	}
	cv.Conditions.Replace("mps", bad)
}

// mpsHint says what happens next by itself, or which command helps.
func mpsHint(g *observe.GPU) string {
	switch m := g.MPS; {
	case m == nil:
		return "it is started again"
	case m.Down() && len(m.Leftovers) > 0:
		return "servers of the former control daemon still run: " + restartHint(g)
	case m.Phase == mps.Failed:
		return fmt.Sprintf("it is started again after five minutes; correct the cause, then 'gpushare gpu retry %d'", g.Identity.Index)
	case m.Phase == mps.Unresponsive:
		return restartHint(g)
	}
	return "it is corrected by itself"
}

// restartHint is for a control daemon that only a restart corrects.
func restartHint(g *observe.GPU) string {
	return fmt.Sprintf("it is restarted when it has no clients; 'gpushare mps restart %d --force' terminates them", g.Identity.Index)
}

// reportMPSCorrected reports what was changed from outside on control daemons that run, and is as desired again.
func (cv *Converger) reportMPSCorrected(want *state.Desired, before *observe.Node, steps []step.Step) {
	after := cv.Observer.Last()
	_, due := planner.PlanMPS(want, after)
	for i := range steps {
		s := &steps[i]
		g, ok := before.GPU(gpu.UUID(s.GPU))
		if s.Kind != mps.KindStart || !ok || g.MPS == nil || g.MPS.Phase != mps.Running {
			continue
		}
		if !slices.ContainsFunc(due, func(d step.Step) bool { return d.GPU == s.GPU }) {
			cv.reportCorrected("", "", fmt.Sprintf("MPS of GPU %d: %s%s", g.Identity.Index, s.Reason, cv.connected(g)))
		}
	}
}

// connected names the clients of a control daemon whose limits any of them may have changed: the daemon does not say who did.
func (cv *Converger) connected(g *observe.GPU) string {
	if !g.MPS.AnyoneSets || !g.MPS.Drift {
		return ""
	}
	if len(g.MPS.Clients) == 0 {
		return "; any process that reaches its tenants' socket may change it, and it has no clients"
	}
	lease := cv.Attribution.LeaseLookup(len(g.MPS.Clients))
	var names []string
	for _, pid := range g.MPS.Clients {
		name := fmt.Sprintf("pid %d", pid)
		if id, ok := lease(pid); ok {
			name += " of " + id
		}
		names = append(names, name)
	}
	return "; any process that reaches its tenants' socket may change it, and its clients are " + strings.Join(names, ", ")
}
