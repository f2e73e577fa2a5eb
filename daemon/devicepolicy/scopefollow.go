package devicepolicy

import (
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// ScopeRules returns the device rules that a running lease should have on the host as observed: modules are loaded, nodes appear and
// majors change while it runs. had are those that it has. What cannot be known now is kept: a driver or a GPU that does not answer
// revokes nothing.
func (pol *Policy) ScopeRules(node *observe.Node, l *lease.Lease, had []cgroup.DeviceRule) ([]cgroup.DeviceRule, error) {
	if node.DriverErr != nil {
		return had, nil
	}
	hw, err := pol.hardware(node, nil)
	if err != nil {
		return nil, err
	}
	unread := pol.NeverRead(node)
	if slices.ContainsFunc(l.Place.GPUs, func(id gpu.UUID) bool { return unread[id] }) {
		return had, nil
	}
	rules, _, err := pol.rulesOn(&hw, l)
	if err != nil {
		return had, nil // Its GPU or its instance is missing: a change ends the lease, not this.
	}
	if _, ok := pol.State.Desired().Tenant(l.Terms.Tenant); !ok {
		// The classes of a removed tenant are not in the spec any more, and its leases may go on.
		rules = append(
			rules,
			slices.DeleteFunc(slices.Clone(had), func(r cgroup.DeviceRule) bool { return isolation.OfDriver(&hw.Host, r) })...)
		rules = cgroup.SortRules(rules)
	}
	return rules, nil
}
