package planner

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// PlanMPS plans the MPS control daemons: which ones are stopped before the GPU steps and started after them.
func PlanMPS(want *state.Desired, node *observe.Node) (stop, start []step.Step) {
	desired, observed := map[mps.Device]mps.Settings{}, map[mps.Device]mps.Observed{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if e := want.GPUs[id]; e != nil && e.Mode == api.ModeMPS {
			desired[mps.Whole(id)] = mpsSettings(want, g.Identity, e)
		}
		if g.MPS != nil || desired[mps.Whole(id)].GPU != "" {
			observed[mps.Whole(id)] = mps.Observed{State: g.MPS, ComputeMode: g.ComputeMode, Processes: g.Processes}
		}
	}
	for _, s := range mps.Plan(desired, observed) {
		if s.Phase == step.RevokeAccess {
			stop = append(stop, s)
		} else {
			start = append(start, s)
		}
	}
	return stop, start
}

// MPSReason says why no client can join MPS. m is its state; nil: none was found.
func MPSReason(m *mps.State) string {
	switch {
	case m == nil:
		return "MPS does not run"
	case m.Reason == "":
		return "MPS is " + string(m.Phase)
	}
	return "MPS is " + string(m.Phase) + ": " + m.Reason
}

// closeWithoutMPS closes the GPUs that no client can join. The reason may name processes of other tenants, and the users who wait
// read this text.
func closeWithoutMPS(closed map[gpu.UUID]string, want *state.Desired, node *observe.Node) {
	for i := range node.GPUs {
		if g := &node.GPUs[i]; closed[g.Identity.UUID] == "" && want.WantsMPS(g.Identity.UUID) && !g.MPS.Healthy() {
			closed[g.Identity.UUID] = "its MPS is down"
		}
	}
}

// WithoutRestarts removes the restarts of control daemons that are down or do not answer and still have clients: a change of
// something else neither stops these clients nor is refused because of them.
func WithoutRestarts(steps []step.Step, node *observe.Node) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool {
		g, ok := node.GPU(gpu.UUID(s.GPU))
		return s.Kind == mps.KindStart && s.Disruption == step.Running && ok && g.MPS != nil && (g.MPS.Down() || g.MPS.Phase == mps.Unresponsive || g.MPS.LogSilent)
	})
}

// WithoutWaiting removes the starts of control daemons whose next start is not due: only a request may start them earlier.
func WithoutWaiting(steps []step.Step, node *observe.Node, now time.Time) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool {
		g, ok := node.GPU(gpu.UUID(s.GPU))
		return s.Kind == mps.KindStart && ok && g.MPS.Waits(now)
	})
}
