package planner

import (
	"maps"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/mps"
)

// PlanMPS plans the MPS control daemons: which ones are stopped before the GPU steps and started after them. managed reports
// whether gpushare manages an instance.
func PlanMPS(want *state.Desired, node *observe.Node, hardware []step.Step, managed ManagedInstance) (stop, start []step.Step) {
	desired, observed := map[mps.Device]mps.Settings{}, map[mps.Device]mps.Observed{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if g.Err != nil {
			continue // Starting and stopping MPS sets the compute mode: nothing is changed on a GPU that does not answer.
		}
		if e := want.GPUs[id]; e != nil && e.Mode == api.ModeMPS {
			desired[mps.Whole(id)] = mpsSettings(want, g.Identity, e)
		}
		if g.MPS != nil || desired[mps.Whole(id)].GPU != "" {
			observed[mps.Whole(id)] = mps.Observed{State: g.MPS, ComputeMode: g.ComputeMode, Processes: g.Processes}
		}
		maps.Copy(desired, instanceMPS(want, g, hardware, managed))
		for _, st := range g.InstanceMPS {
			observed[st.Device()] = mps.Observed{State: st, Processes: processesOf(g, st.Instance)}
		}
	}
	replaced := replacedMPS(desired, observed, hardware)
	steps := mps.Plan(desired, observed)
	// Their daemons do not outlive them, and are started again for what is created.
	for _, s := range append(steps, mps.Plan(replaced, nil)...) {
		if s.Phase == step.RevokeAccess {
			stop = append(stop, s)
		} else {
			start = append(start, s)
		}
	}
	return stop, start
}

// ManagedInstance reports whether gpushare manages an instance of a GPU.
type ManagedInstance = func(id gpu.UUID, in *gpu.Instance) bool

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

// WithoutRestarts removes the restarts of control daemons that are down or do not answer and still have clients: a change of
// something else neither stops these clients nor is refused because of them.
func WithoutRestarts(steps []step.Step, node *observe.Node) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool {
		m := MPSOf(&s, node)
		return s.Kind == mps.KindStart && s.Disruption == step.Running && m != nil &&
			(m.Down() || m.Phase == mps.Unresponsive || m.LogSilent)
	})
}

// WithoutWaiting removes the starts of control daemons whose next start is not due: only a request may start them earlier.
func WithoutWaiting(steps []step.Step, node *observe.Node, now time.Time) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool {
		return s.Kind == mps.KindStart && MPSOf(&s, node).Waits(now)
	})
}

// MPSOf is the control daemon that a step is about, as observed; nil without one.
func MPSOf(s *step.Step, node *observe.Node) *mps.State {
	d, isMPS := mps.DeviceOf(s)
	g, ok := node.GPU(d.GPU)
	if !isMPS || !ok {
		return nil
	}
	return g.MPSOf(d)
}
