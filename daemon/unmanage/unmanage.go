package unmanage

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/internal/store"
)

// noSpec is stored instead of a spec after unmanage --all.
const noSpec = "version: v1\n"

// PostUnmanage unmanages the node: it removes all restrictions, and with all also the managed MIG instances and modes. It is a
// change like others: planned, recorded, carried out by steps, and resumed after a crash.
func (u *Unmanaging) PostUnmanage(c *server.Call) error {
	a := planner.Authority{Force: c.Flag("force")}
	if list := c.Text("drained"); list != "" {
		a.Drained = strings.Split(list, ",")
	}
	check, extent := c.Flag("check"), store.UnmanagedRestrictions
	if c.Flag("all") {
		extent = store.UnmanagedAll
	}
	if check {
		p, err := u.Propose(c.Ctx(), extent, c.Caller.Name)
		if err != nil {
			return err
		}
		return c.Reply(
			http.StatusOK,
			api.ApplyResult{Generation: p.Want.Generation, Plan: p.Plan, Checked: true, Changed: p.Changes()},
		)
	}
	var out *api.ApplyResult
	err := u.Changes.Alone(c.Ctx(), func() (err error) {
		// The GPUs are closed to new leases before the current ones are read.
		open := u.closeGPUs()
		if out, err = u.unmanage(c, extent, a); err != nil || out.Operation == nil {
			open()
		}
		return err
	})
	if err != nil {
		return err
	}
	if out.Operation != nil {
		return c.Reply(http.StatusAccepted, out)
	}
	return c.Reply(http.StatusOK, out)
}

func (u *Unmanaging) unmanage(c *server.Call, extent string, a planner.Authority) (*api.ApplyResult, error) {
	caller := c.Caller.Name
	p, err := u.Propose(c.Ctx(), extent, caller)
	if err != nil {
		return nil, err
	}
	if err := u.admit(p, a); err != nil {
		return nil, err
	}
	out := &api.ApplyResult{Generation: p.Want.Generation, Plan: p.Plan, Changed: p.Changes()}
	if !out.Changed {
		if _, err := server.GoOn(c.Ctx()); err != nil {
			return nil, err
		}
		c.Note.Text = "no changes"
		return out, u.forgetRestored(p)
	}
	c.Note.Text = p.AuditText(a.Force) + ", " + extent
	out.Operation, err = u.Changes.Accept(c.Ctx(), p, caller, a)
	return out, err
}

// admit returns why the proposal is refused: what is in use, and what jobs of engines may have.
func (u *Unmanaging) admit(p *state.Proposal, a planner.Authority) error {
	now, live := u.State.Desired(), u.Table.Live()
	ends := planner.LeaseEnds(now, p.Want, live, p.Steps)
	if err := planner.AdmitUnmanage(p.Steps, ends, a); err != nil {
		planner.NameEngines(err, ends, p.Plan.Engines, planner.EnginesRefused(now, live, ends, p.Steps, nil), u.NodeName, p.Command)
		return err
	}
	return planner.AdmitEngines(p.Plan.Engines, u.NodeName, p.Command, a)
}

// forgetRestored removes the original modes of GPUs that got them since the node was unmanaged, for example by the command that the
// answer named.
func (u *Unmanaging) forgetRestored(p *state.Proposal) error {
	if p.Extent != store.UnmanagedAll || len(u.State.Stored().OriginalModes) == 0 {
		return nil
	}
	return u.State.Store.Update(func(s *store.State) error {
		state.ForgetRestored(s, p.Node)
		return nil
	})
}

// closeGPUs keeps new leases out of every GPU until open is called or a change takes its place.
func (u *Unmanaging) closeGPUs() (open func()) {
	node := u.Observer.Last()
	provisional := &state.OpenChange{Operation: state.KindUnmanage, GPUs: state.EveryGPU(node)}
	u.State.SetChanging(provisional)
	u.Table.Update(planner.View(u.State, node, u.Now()))
	return func() {
		if u.State.Withdraw(provisional) {
			u.Table.Update(planner.View(u.State, u.Observer.Last(), u.Now()))
			u.Invalidate()
		}
	}
}

// Propose plans to unmanage the node. It changes nothing.
func (u *Unmanaging) Propose(ctx context.Context, extent, caller string) (*state.Proposal, error) {
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	now, acc := u.State.Desired(), u.State.Stored().Accepted
	p := &state.Proposal{Intent: state.ToUnmanage, Extent: extent, Node: u.Observer.Observe(ctx), Want: now, Command: "gpushare unmanage"}
	if extent == store.UnmanagedAll {
		p.Command += " --all"
	}
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
		p.Want.Unmanaged = &api.Unmanaged{By: caller, At: u.Now(), All: extent == store.UnmanagedAll}
	}
	rest, err := u.remaining(p.Node, extent)
	if err != nil {
		return nil, err
	}
	quiesce, err := u.Changes.Quiesce(ctx, now, u.Attribution.UsageUnder(now, u.Attribution.OpenDevices(ctx, p.Node.GPUs)), rest.steps)
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
	u.State.Estimate(p.Node, &p.Plan)
	p.Plan.Disturbs = planner.Disturbs(p.Steps)
	p.Plan.Engines = planner.EnginesChanged(now, u.Table.Live(), p.Steps, nil)
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
