package daemon

import (
	"slices"
	"sync"

	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
)

// nodeInput is what a plan of the node is made from. going are the hardware steps that come with it.
func (d *Policy) nodeInput(want *desired, node *observe.Node, going []step.Step) NodeInput {
	in := NodeInput{
		Info: d.port.Info(), InForce: want == d.state.Desired(), NeverRead: d.neverRead(node), Logins: d.logins.logins,
		Slices: sync.OnceValues(func() (*wanted, error) { return d.wallsWanted(want, node, going) }),
		Own: func(to []cgroup.Slice) []cgroup.SliceState {
			own, _ := d.state.ownSlices(node, to)
			return own
		},
		Use: sync.OnceValue(func() map[cgroup.SliceName]isolation.Use { return d.sliceUse(node) }),
		Filters: sync.OnceValues(func() ([]devices.State, error) {
			states, _, err := d.guardsWanted(want, node, going, d.table.Live())
			// Nobody is in a cgroup that does not exist, and the rest of a change does not wait for it: a condition says so.
			return slices.DeleteFunc(states, func(s devices.State) bool { return !d.logins.there(s.Cgroup) }), err
		}),
	}
	if p := d.port.Abilities().Migration; p != nil {
		in.Denied = p.MigrationDenied
	}
	return in
}
