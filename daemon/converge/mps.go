package converge

import (
	"errors"
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
	if errors.Is(node.DriverErr, gpu.ErrParked) {
		cv.Conditions.Replace("mps", nil) // It was stopped for the maintenance.
		return
	}
	bad := map[string]api.Condition{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		var down []mps.Device
		if want.WantsMPS(id) && !g.MPS.Healthy() {
			down = append(down, mps.Whole(id))
		}
		for _, m := range g.ControlDaemons() {
			if m.Settings != nil && m.Healthy() && m.LogSilent && want.Enforcing() {
				bad[fmt.Sprint(m.Device())] = api.Condition{
					GPU:     string(id),
					Message: planner.DeviceName(g, m.Device()) + ": the log of MPS is silent: a fault of a client would not be named",
					Hint:    restartHint(g, m),
				}
			}
		}
		for _, d := range append(down, planner.DownInstances(want, g, cv.State.ManagesInstance)...) {
			m := g.MPSOf(d)
			if m == nil && cv.State.Changing() != nil {
				continue
			}
			c := api.Condition{GPU: string(id), Message: planner.DeviceName(g, d) + ": " + planner.MPSReason(m), Hint: mpsHint(g, m)}
			bad[fmt.Sprint(d)] = c
		}
	}
	cv.Conditions.Replace("mps", bad)
}

// mpsHint says what happens next by itself, or which command helps.
func mpsHint(g *observe.GPU, m *mps.State) string {
	switch {
	case m == nil:
		return "it is started again"
	case m.Down() && len(m.Leftovers) > 0:
		return "servers of the former control daemon still run: " + restartHint(g, m)
	case m.Phase == mps.Failed:
		return fmt.Sprintf("it is started again after five minutes; correct the cause, then 'gpushare gpu retry %s'", g.Identity.Argument())
	case m.Phase == mps.Unresponsive:
		return restartHint(g, m)
	case m.Fault != nil && len(m.Fault.Stragglers) > 0:
		return fmt.Sprintf(
			"it serves again when these have ended; those of leases are stopped ten seconds after the fault, and 'gpushare mps restart %s --force' does not wait for them",
			planner.MPSArguments(g, m.Device()),
		)
	}
	return "it is corrected by itself"
}

// restartHint is for a control daemon that only a restart corrects.
func restartHint(g *observe.GPU, m *mps.State) string {
	return fmt.Sprintf(
		"it is restarted when it has no clients; 'gpushare mps restart %s --force' terminates them",
		planner.MPSArguments(g, m.Device()),
	)
}

// reportMPSCorrected reports what was changed from outside on control daemons that run, and is as desired again.
func (cv *Converger) reportMPSCorrected(want *state.Desired, before *observe.Node, steps []step.Step) {
	after := cv.Observer.Last()
	_, due := planner.PlanMPS(want, after, nil, cv.State.ManagesInstance)
	for i := range steps {
		s := &steps[i]
		g, ok := before.GPU(gpu.UUID(s.GPU))
		m := planner.MPSOf(s, before)
		if s.Kind != mps.KindStart || !ok || m == nil || m.Phase != mps.Running {
			continue
		}
		same := func(d step.Step) bool {
			of, ok := mps.DeviceOf(&d)
			return ok && of == m.Device()
		}
		if !slices.ContainsFunc(due, same) {
			cv.reportCorrected("", "", fmt.Sprintf("MPS of %s: %s%s", planner.DeviceName(g, m.Device()), s.Reason, cv.connected(m)))
		}
	}
}

// connected names the clients of a control daemon whose limits any of them may have changed: the daemon does not say who did.
func (cv *Converger) connected(m *mps.State) string {
	if !m.AnyoneSets || !m.Drift {
		return ""
	}
	if len(m.Clients) == 0 {
		return "; any process that reaches its tenants' socket may change it, and it has no clients"
	}
	lease := cv.Attribution.LeaseLookup(len(m.Clients))
	var names []string
	for _, pid := range m.Clients {
		name := fmt.Sprintf("pid %d", pid)
		if id, ok := lease(pid); ok {
			name += " of " + id
		}
		names = append(names, name)
	}
	return "; any process that reaches its tenants' socket may change it, and its clients are " + strings.Join(names, ", ")
}
