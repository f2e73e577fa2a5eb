package planner

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
)

// NodeInput is the input of the part of a plan that changes no GPU hardware. Each part is read when it is needed, and at
// most once.
type NodeInput struct {
	Info cgroup.Info
	// InForce means that the spec is the one in force.
	InForce bool
	// Hardware are the steps of the same change that change GPUs.
	Hardware []step.Step
	// ManagedInstance reports whether gpushare manages an instance.
	ManagedInstance ManagedInstance
	// Slices returns the slices that the spec needs.
	Slices func() (*DesiredSlices, error)
	// Managed returns the slices of the node that gpushare manages, given the desired ones.
	Managed func(to []cgroup.Slice) []cgroup.SliceState
	// Use returns the current use of each slice.
	Use func() map[cgroup.SliceName]isolation.Use
	// Filters returns the login filters that the spec needs, on cgroups that exist.
	Filters func() ([]devices.LoginFilterState, error)
	// Logins is the cgroup of logins; empty when it is unknown.
	Logins string
	// MigrationDenied reports whether moving processes out of leases is denied; nil on a host where no service could move them.
	MigrationDenied func() (bool, error)
}

// NodeSteps is the part of a plan that changes no GPU hardware: isolation and MPS control daemons.
type NodeSteps struct {
	Before []step.Step // before the GPU steps: they revoke access
	After  []step.Step // after the GPU steps: they grant access
}

// DesiredSlices is the slices that a spec needs, for one observation, and the parts that this host cannot enforce.
type DesiredSlices struct {
	Node    *observe.Node
	Spec    *state.Desired
	Slices  []cgroup.Slice
	Missing []isolation.Missing
}

// PlanNodeSteps plans everything that changes no GPU hardware.
func PlanNodeSteps(want *state.Desired, node *observe.Node, in NodeInput) (NodeSteps, error) {
	p, err := PlanSlicesAndMPS(want, node, in)
	if err != nil {
		return p, err
	}
	filter, err := PlanLoginFilter(node, in)
	p.Before, p.After = append(filter.Before, p.Before...), append(p.After, filter.After...)
	p.Before = append(p.Before, PlanMigration(want, in.MigrationDenied)...)
	return p, err
}

// PlanSlicesAndMPS plans slices and MPS. Access to instances that GPU steps destroy is revoked first: the input contains them.
func PlanSlicesAndMPS(want *state.Desired, node *observe.Node, in NodeInput) (NodeSteps, error) {
	var p NodeSteps
	if node.SlicesErr != nil {
		return p, fmt.Errorf("cannot read the slices: %w", node.SlicesErr)
	}
	if node.DriverErr != nil {
		return p, nil // The isolation stays unchanged: without the driver the devices of each tenant are unknown.
	}
	w, err := in.Slices()
	if err != nil {
		return p, err
	}
	stop, start := PlanMPS(want, node, in.Hardware, in.ManagedInstance)
	p.Before = append(p.Before, stop...)
	if !in.Info.Slices {
		p.After = start // This host has no slices.
		return p, nil
	}
	for _, s := range PlanSlices(w.Slices, in) {
		if s.Phase == step.RevokeAccess {
			p.Before = append(p.Before, s)
		} else {
			p.After = append(p.After, s)
		}
	}
	p.After = append(start, p.After...)
	return p, nil
}

// PlanSlices plans the slices. Their use is read only when access is revoked: reading every file descriptor of every process
// is too expensive for a loop that finds nothing to do.
func PlanSlices(to []cgroup.Slice, in NodeInput) []step.Step {
	managed := in.Managed(to)
	steps := isolation.Plan(to, managed, in.Info)
	if !slices.ContainsFunc(steps, func(s step.Step) bool { return s.Phase == step.RevokeAccess }) {
		return steps
	}
	use := in.Use()
	if in.InForce {
		// The spec in force never granted these devices: a process that has one open is not protected.
		for name, u := range use {
			u.Devices = nil
			use[name] = u
		}
	}
	return isolation.PlanInUse(to, managed, in.Info, use)
}

// PlanLoginFilter plans the desired login filters. When the active ones cannot be read nothing is planned; a condition
// reports it.
func PlanLoginFilter(node *observe.Node, in NodeInput) (NodeSteps, error) {
	var p NodeSteps
	if node.LoginFiltersErr != nil {
		return p, nil
	}
	states, err := in.Filters()
	if err != nil {
		return p, err
	}
	for _, s := range isolation.PlanLoginFilters(states, node.LoginFilters, in.Logins) {
		if s.Phase == step.RevokeAccess {
			p.Before = append(p.Before, s)
		} else {
			p.After = append(p.After, s)
		}
	}
	return p, nil
}

// PlanMigration plans the desired bus policy; no step without a service manager, or when the policy is as desired.
func PlanMigration(want *state.Desired, denied func() (bool, error)) []step.Step {
	if denied == nil {
		return nil // There is no service that could move a process.
	}
	is, err := denied()
	deny := want.DeniesMigration()
	if err != nil || is == deny {
		return nil // addMigrationConditions reports that it cannot be read.
	}
	s := step.Step{
		Kind:       KindMigration,
		Phase:      step.RevokeAccess,
		Args:       step.Must(MigrationArgs{deny}),
		Undo:       step.Must(MigrationArgs{is}),
		Text:       "deny moving processes out of leases (a bus policy against AttachProcessesToUnit)",
		Reason:     "node.isolation.migration is deny",
		Disruption: step.None,
	}
	if !deny {
		s.Phase, s.Text, s.Reason = step.GrantAccess, "let tenants move their processes between units again", "node.isolation.migration is not deny"
	}
	return []step.Step{s}
}

// PlanMigrationUnmanage plans the removal of the bus policy when the node is unmanaged. A policy that cannot be read is an
// error: it is unknown then whether the node is unmanaged completely.
func PlanMigrationUnmanage(denied func() (bool, error)) ([]step.Step, error) {
	if denied == nil {
		return nil, nil
	}
	is, err := denied()
	if err != nil {
		return nil, err
	}
	steps := PlanMigration(&state.Desired{}, func() (bool, error) { return is, nil })
	for i := range steps {
		steps[i].Reason = "the node is unmanaged"
	}
	return steps, nil
}
