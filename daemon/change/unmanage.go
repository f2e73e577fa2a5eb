package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/mig"
)

// noSpec is stored instead of a spec after unmanage --all.
const noSpec = "version: v1\n"

// PostUnmanage unmanages the node: it removes all restrictions, and with all also the managed MIG instances and modes. It is a
// change like others: planned, recorded, carried out by steps, and resumed after a crash.
func (cs *Changes) PostUnmanage(c *server.Call) error {
	a := planner.Authority{Force: c.Flag("force")}
	check, extent := c.Flag("check"), store.UnmanagedRestrictions
	if c.Flag("all") {
		extent = store.UnmanagedAll
	}
	if check {
		p, err := cs.proposeUnmanage(c.Ctx(), extent, c.Caller.Name)
		if err != nil {
			return err
		}
		return c.Reply(
			http.StatusOK,
			api.ApplyResult{Generation: p.Want.Generation, Plan: p.Plan, Checked: true, Changed: p.Changes()},
		)
	}
	done, err := cs.lock(c.Ctx())
	if err != nil {
		return err
	}
	defer done()
	// The GPUs are closed to new leases before the current ones are read.
	open := cs.closeGPUs()
	out, err := cs.unmanage(c, extent, a)
	if err != nil || out.Operation == nil {
		open()
	}
	if err != nil {
		return err
	}
	if out.Operation != nil {
		return c.Reply(http.StatusAccepted, out)
	}
	return c.Reply(http.StatusOK, out)
}

func (cs *Changes) unmanage(c *server.Call, extent string, a planner.Authority) (*api.ApplyResult, error) {
	caller := c.Caller.Name
	p, err := cs.proposeUnmanage(c.Ctx(), extent, caller)
	if err != nil {
		return nil, err
	}
	if err := planner.AdmitUnmanage(p.Steps, a); err != nil {
		return nil, err
	}
	out := &api.ApplyResult{Generation: p.Want.Generation, Plan: p.Plan, Changed: p.Changes()}
	if !out.Changed {
		c.Note.Text = "no changes"
		return out, cs.forgetRestored(p)
	}
	c.Note.Text = auditText(p, a) + ", " + extent
	out.Operation, err = cs.accept(c.Ctx(), p, caller, a)
	return out, err
}

// forgetRestored removes the original modes of GPUs that got them since the node was unmanaged, for example by the command that the
// answer named.
func (cs *Changes) forgetRestored(p *state.Proposal) error {
	if p.Extent != store.UnmanagedAll || len(cs.State.Stored().OriginalModes) == 0 {
		return nil
	}
	return cs.State.Store.Update(func(s *store.State) error {
		state.ForgetRestored(s, p.Node)
		return nil
	})
}

// closeGPUs keeps new leases out of every GPU until open is called or a change takes its place.
func (cs *Changes) closeGPUs() (open func()) {
	node := cs.Observer.Last()
	provisional := &state.OpenChange{Operation: state.KindUnmanage, GPUs: everyGPU(node)}
	cs.State.SetChanging(provisional)
	cs.Table.Update(planner.View(cs.State, node))
	return func() {
		if cs.State.Withdraw(provisional) {
			cs.Table.Update(planner.View(cs.State, cs.Observer.Last()))
			cs.Invalidate()
		}
	}
}

func everyGPU(n *observe.Node) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	for i := range n.GPUs {
		out[n.GPUs[i].Identity.UUID] = true
	}
	return out
}

// proposeUnmanage plans to unmanage the node. It changes nothing.
func (cs *Changes) proposeUnmanage(ctx context.Context, extent, caller string) (*state.Proposal, error) {
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	now, acc := cs.State.Desired(), cs.State.Stored().Accepted
	p := &state.Proposal{Intent: state.ToUnmanage, Extent: extent, Node: cs.Observer.Observe(ctx), Want: now}
	if acc == nil || acc.Unmanaged == extent || acc.Unmanaged == store.UnmanagedAll {
		p.Intent = p.Intent.InForce()
	} else {
		var err error
		if p.YAML, p.Want, err = unmanagedSpec(acc, extent); err != nil {
			return nil, err
		}
		if extent != store.UnmanagedAll {
			p.Resolved = spec.Resolved(acc.Resolved)
		}
		p.Want.Generation = acc.Generation + 1
		p.Want.Unmanaged = &api.Unmanaged{By: caller, At: cs.Now(), All: extent == store.UnmanagedAll}
	}
	rest, err := cs.remaining(p.Node, extent)
	if err != nil {
		return nil, err
	}
	quiesce, err := cs.planQuiesce(ctx, now, cs.Attribution.UsageUnder(now, cs.Attribution.OpenDevices(ctx, p.Node.GPUs)), rest.steps)
	if err != nil {
		return nil, err
	}
	p.Steps = planner.Number(slices.Concat(quiesce.Stop, rest.steps, quiesce.Start))
	rest.warnings = slices.Concat(rest.warnings, quiesce.Warnings, planner.IrreversibleWarnings(p.Steps, p.Node))
	p.Plan = api.Plan{
		SchemaVersion: 1,
		Generation:    p.Want.Generation,
		Empty:         len(p.Steps) == 0,
		Steps:         state.WireSteps(p.Steps),
		Warnings:      rest.warnings,
		Unreachable:   rest.unread,
	}
	cs.State.Estimate(p.Node, &p.Plan)
	p.Plan.Disturbs = planner.Disturbs(p.Steps)
	return p, nil
}

// unmanagedSpec is the spec of an unmanaged node: the one that was in force, with enforce: observe; or none.
func unmanagedSpec(acc *store.Accepted, extent string) (yaml string, want *state.Desired, err error) {
	if extent == store.UnmanagedAll {
		return noSpec, &state.Desired{}, nil
	}
	s, err := spec.DecodeAccepted("state.json", []byte(acc.YAML))
	if err != nil {
		return "", nil, &api.Error{
			Kind:    api.KindInvalid,
			Message: "the accepted spec cannot be read by this version: " + err.Error(),
			Hint:    "'gpushare unmanage --all' unmanages the node without the spec",
		}
	}
	s.Node.Enforce = "observe"
	text, err := spec.Encode(s)
	if err != nil {
		return "", nil, err
	}
	s.Normalize()
	return string(text), state.DesiredOf(s, spec.Resolved(acc.Resolved), acc.Generation), nil
}

// remainder is the steps that remove what gpushare maintains on the node.
type remainder struct {
	steps    []step.Step
	warnings []string          // what stays, and why
	unread   []api.Unreachable // what could not be read: it is not known whether it is left
}

// remaining returns the steps that are left to unmanage the node. It needs no spec: it reads what is active.
func (cs *Changes) remaining(node *observe.Node, extent string) (remainder, error) {
	var out remainder
	if node.SlicesErr != nil {
		return out, fmt.Errorf("cannot read the slices: %w", node.SlicesErr)
	}
	if node.LoginFiltersErr != nil {
		out.unread = planner.UnreadParts(node, planner.NodeInput{})
	}
	live := cs.Table.Live()
	var hardware []step.Step
	if extent == store.UnmanagedAll {
		found, uses := cs.State.Stored().OriginalModes, cs.Attribution.Usage()
		for i := range node.GPUs {
			steps, warnings := planner.PlanUnmanageGPU(&node.GPUs[i], found[node.GPUs[i].Identity.UUID], uses)
			hardware = append(hardware, steps...)
			out.warnings = append(out.warnings, warnings...)
		}
	}
	managed, others := cs.State.ManagedSlices(node, nil)
	for i := range others {
		out.warnings = append(out.warnings, fmt.Sprintf("the slice of %s is not managed by gpushare: it stays", others[i].Name))
	}
	stop, _ := planner.PlanMPS(&state.Desired{}, node, nil, nil)
	var names []cgroup.SliceState
	if !cs.Port.Info().Slices {
		if !cs.State.Desired().Enforcing() {
			managed = nil // Without enforcement the slices are only names: they restrict no process.
		}
		names = managed
	}
	bus, err := planner.PlanMigrationUnmanage(cs.Policy.NodeInput(&state.Desired{}, node, nil).MigrationDenied)
	if err != nil {
		return out, err
	}
	isolationSteps := slices.Concat(
		isolation.PlanUnmanage(managed, cs.Port.Info(), cs.Attribution.SliceUse(node)),
		isolation.PlanLoginFilters(nil, node.LoginFilters, cs.Logins.Logins), bus,
	)
	rest, warnings, err := cs.planUnmanageRest()
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(cs.Tasks.Context(), observe.Timeout)
	defer cancel()
	power, unread := cs.Power.PlanUnmanage(ctx, (&state.Desired{}).PowerTargets(node))
	out.warnings = slices.Concat(out.warnings, warnings, unread)
	out.steps = slices.Concat(planner.PlanUnmanageStops(live, names, hardware, extent), isolationSteps, rest, stop, hardware, power)
	return out, nil
}

// recordFound records the original modes of the GPUs whose modes these steps change: once, before the first change.
func recordFound(s *store.State, steps []step.Step) {
	for i := range steps {
		st := &steps[i]
		f := s.OriginalModes[gpu.UUID(st.GPU)]
		switch st.Kind {
		case mig.KindMode:
			var was mig.ModeArgs
			if json.Unmarshal(st.Undo, &was) != nil || f.MIG != nil {
				continue
			}
			f.MIG = &was.On
		case planner.KindComputeMode:
			var was planner.ComputeModeArgs
			if json.Unmarshal(st.Undo, &was) != nil || f.ComputeMode != "" {
				continue
			}
			f.ComputeMode = was.Mode
		default:
			continue
		}
		if s.OriginalModes == nil {
			s.OriginalModes = map[gpu.UUID]store.GPUModes{}
		}
		s.OriginalModes[gpu.UUID(st.GPU)] = f
	}
}

// RemainingSteps returns how many steps are left to unmanage the node, and the first of them.
func (cs *Changes) RemainingSteps(node *observe.Node) (n int, first string, err error) {
	l, err := cs.remaining(node, store.UnmanagedRestrictions)
	if err == nil && len(l.unread) > 0 {
		err = errors.New(l.unread[0].Reason)
	}
	if err != nil || len(l.steps) == 0 {
		return 0, "", err
	}
	return len(l.steps), l.steps[0].Text, nil
}

// nothingRemains reports whether the node is unmanaged completely.
func (cs *Changes) nothingRemains(node *observe.Node, want *state.Desired) bool {
	extent := store.UnmanagedRestrictions
	if want.Unmanaged != nil && want.Unmanaged.All {
		extent = store.UnmanagedAll
	}
	l, err := cs.remaining(node, extent)
	return err == nil && len(l.steps)+len(l.unread) == 0
}
