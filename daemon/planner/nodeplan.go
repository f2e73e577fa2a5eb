package planner

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/mps"
)

// NodeInput is what the part of a plan is made from that changes no GPU hardware. Its parts are read when they are asked
// for, and at most once.
type NodeInput struct {
	Info cgroup.Info
	// InForce tells that the spec is the one in force.
	InForce bool
	// NeverRead tells that there is a GPU of which nothing is known.
	NeverRead bool
	// Slices is what the spec wants of slices.
	Slices func() (*DesiredSlices, error)
	// Managed gives those slices of the node that are ours when these are wanted.
	Managed func(to []cgroup.Slice) []cgroup.SliceState
	// Use is who uses which slice, and what of.
	Use func() map[cgroup.SliceName]isolation.Use
	// Filters are the login filters that the spec wants, on cgroups that exist.
	Filters func() ([]devices.LoginFilterState, error)
	// Logins is the cgroup of logins; empty where none is known.
	Logins string
	// MigrationDenied tells whether tenants are denied to have processes moved out of leases; nil where nobody could move anybody.
	MigrationDenied func() (bool, error)
}

// NodeSteps is the part of a plan that changes no GPU hardware: walls, and MPS control daemons.
type NodeSteps struct {
	Before []step.Step // before the hardware
	After  []step.Step // after it
}

// DesiredSlices is the slices that a spec wants on one observation, and what they lack.
type DesiredSlices struct {
	Node    *observe.Node
	Spec    *state.Desired
	Slices  []cgroup.Slice
	Missing []isolation.Missing
}

// PlanNodeSteps plans all that changes no GPU hardware.
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

// PlanSlicesAndMPS plans slices and MPS. What hardware steps destroy is closed first: the input knows of them.
func PlanSlicesAndMPS(want *state.Desired, node *observe.Node, in NodeInput) (NodeSteps, error) {
	var p NodeSteps
	if node.SlicesErr != nil {
		return p, fmt.Errorf("cannot read the slices: %w", node.SlicesErr)
	}
	if node.DriverErr != nil {
		return p, nil // Walls are left as they stand: what they should allow cannot be known.
	}
	w, err := in.Slices()
	if err != nil {
		return p, err
	}
	stop, start := PlanMPS(want, node)
	p.Before = append(p.Before, stop...)
	if !in.Info.Slices {
		p.After = start // There are no slices to make.
		return p, nil
	}
	desiredSlices := w.Slices
	if in.NeverRead {
		desiredSlices = slices.DeleteFunc(slices.Clone(desiredSlices), func(s cgroup.Slice) bool { return sliceExists(node, s.Name) })
		for i := range node.Slices { // As they stand, so that nothing is planned for them.
			desiredSlices = append(desiredSlices, asObserved(&node.Slices[i]))
		}
	}
	for _, s := range PlanSlices(desiredSlices, in) {
		if s.Phase == step.RevokeAccess {
			p.Before = append(p.Before, s)
		} else {
			p.After = append(p.After, s)
		}
	}
	p.After = append(start, p.After...)
	return p, nil
}

// PlanSlices plans the slices. Who uses them is looked at only when something is taken away: a look at every descriptor of
// every process is not for a loop that finds nothing to do.
func PlanSlices(to []cgroup.Slice, in NodeInput) []step.Step {
	managed := in.Managed(to)
	steps := isolation.Plan(to, managed, in.Info)
	if !slices.ContainsFunc(steps, func(s step.Step) bool { return s.Phase == step.RevokeAccess }) {
		return steps
	}
	use := in.Use()
	if in.InForce {
		// The spec in force never allowed what is taken away, so whoever has it open is not who it is for.
		for name, u := range use {
			u.Devices = nil
			use[name] = u
		}
	}
	return isolation.PlanInUse(to, managed, in.Info, use)
}

// sliceExists tells whether a slice is there.
func sliceExists(node *observe.Node, name cgroup.SliceName) bool {
	return slices.ContainsFunc(node.Slices, func(s cgroup.SliceState) bool { return s.Name == name })
}

func asObserved(s *cgroup.SliceState) cgroup.Slice {
	return cgroup.Slice{Name: s.Name, Limits: s.Limits, Closed: s.Closed, Devices: s.Devices}
}

// PlanLoginFilter is the steps to the guards that should stand. What cannot be read is not changed: a condition says so.
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

// PlanMigration is the step to the policy as it is wanted; none without a service manager, or when it is so already.
func PlanMigration(want *state.Desired, denied func() (bool, error)) []step.Step {
	if denied == nil {
		return nil // Nobody could move anybody.
	}
	is, err := denied()
	deny := want.DeniesMigration()
	if err != nil || is == deny {
		return nil // What cannot be read is told by judgeMigration.
	}
	s := step.Step{
		Kind: KindMigration, Phase: step.RevokeAccess, Args: step.Must(MigrationArgs{deny}), Undo: step.Must(MigrationArgs{is}),
		Text: "deny moving processes out of leases (a bus policy against AttachProcessesToUnit)", Reason: "the spec says node.isolation.migration: deny", Disruption: step.None,
	}
	if !deny {
		s.Phase, s.Text, s.Reason = step.GrantAccess, "let tenants move their processes between units again", "the spec does not say node.isolation.migration: deny"
	}
	return []step.Step{s}
}

// PlanMigrationUnmanage is the step that takes the policy away when the node is given back. A node is not given back whole
// while that cannot be read.
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
		steps[i].Reason = "the node is given back"
	}
	return steps, nil
}

// PlanMPS plans the control daemons: what is stopped before the hardware changes, and what is started after.
func PlanMPS(want *state.Desired, node *observe.Node) (stop, start []step.Step) {
	desired, observed := map[gpu.UUID]mps.Settings{}, map[gpu.UUID]mps.Observed{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		id := g.Identity.UUID
		if e := want.GPUs[id]; e != nil && e.Mode == api.ModeMPS {
			desired[id] = mps.Settings{GPU: id, Strict: e.MPS != nil && e.MPS.Bypass == api.BypassDeny}
		}
		if g.MPS != nil || desired[id].GPU != "" {
			observed[id] = mps.Observed{State: g.MPS, Processes: g.Processes}
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
