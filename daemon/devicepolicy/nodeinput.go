package devicepolicy

import (
	"slices"
	"sync"

	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
)

// NodeInput returns the input for a plan of the node. hardwareSteps are the steps of the same plan on GPUs.
func (pol *Policy) NodeInput(want *state.Desired, node *observe.Node, hardwareSteps []step.Step) planner.NodeInput {
	in := planner.NodeInput{
		Info: pol.Port.Info(), InForce: want == pol.State.Desired(), Logins: pol.Logins.Logins,
		Hardware: hardwareSteps, ManagedInstance: pol.State.ManagesInstance,
		Slices: sync.OnceValues(func() (*planner.DesiredSlices, error) { return pol.DesiredSlices(want, node, hardwareSteps) }),
		Managed: func(to []cgroup.Slice) []cgroup.SliceState {
			own, _ := pol.State.ManagedSlices(node, to)
			return own
		},
		Use: sync.OnceValue(func() map[cgroup.SliceName]isolation.Use { return pol.SliceUse(node) }),
		Filters: sync.OnceValues(func() ([]devices.LoginFilterState, error) {
			states, _, err := pol.DesiredFilters(want, node, hardwareSteps, pol.Table.LiveUnder(want.Renames))
			// A cgroup that does not exist has no process, and the rest of a change does not wait for it. A condition reports it.
			return slices.DeleteFunc(states, func(s devices.LoginFilterState) bool { return !pol.Logins.Exists(s.Cgroup) }), err
		}),
	}
	if p := pol.Port.Abilities().Migration; p != nil {
		in.MigrationDenied = p.MigrationDenied
	}
	return in
}
