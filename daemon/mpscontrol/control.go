package mpscontrol

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// changes carries out steps as a change.
type changes interface {
	Exclusive(ctx context.Context, f func() error) error
	Submit(kind, caller string, node *observe.Node, plan api.Plan, steps []step.Step, a planner.Authority) (*api.Operation, error)
}

// Control is what administrators do to MPS outside of a spec.
type Control struct {
	*report.Reporter
	StateDir    string
	State       *state.State
	Observer    *observe.Observer
	Attribution *attribution.Attribution
	Table       *lease.Table
	Changes     changes
	Refresh     func(ctx context.Context, node *observe.Node) // the converge loop's, after the state has changed
}

// PostRestart restarts the control daemon of one GPU, and ends its clients if the request has the authority.
func (k *Control) PostRestart(c *server.Call) error {
	if c.Flag("check") {
		return k.restart(c)
	}
	return k.Changes.Exclusive(c.Ctx(), func() error { return k.restart(c) })
}

func (k *Control) restart(c *server.Call) error {
	check, a := c.Flag("check"), planner.Authority{Force: c.Flag("force")}
	ctx, cancel := context.WithTimeout(c.Ctx(), observe.Timeout)
	defer cancel()
	want, node := k.State.Desired(), k.Observer.Observe(ctx)
	if node.DriverErr != nil {
		return report.DriverError(node.DriverErr)
	}
	g, err := planner.MPSGPU(want, node, c.R.PathValue("id"))
	if err != nil {
		return err
	}
	steps := planner.Number([]step.Step{k.restartStep(want, g)})
	plan := api.Plan{SchemaVersion: 1, Generation: want.Generation, Steps: state.WireSteps(steps), Disturbs: planner.Disturbs(steps)}
	k.State.Estimate(node, &plan)
	out := api.ApplyResult{Generation: want.Generation, Plan: plan, Checked: check, Changed: true}
	if check {
		return c.Reply(http.StatusOK, out)
	}
	c.Note.GPU, c.Note.Text = string(g.Identity.UUID), fmt.Sprintf("force=%v", a.Force)
	if err := planner.Admit(steps, a); err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok {
			e.Hint = fmt.Sprintf("nothing was changed; wait until they end, or 'gpushare mps restart %d --force' terminates them", g.Identity.Index)
		}
		return err
	}
	if out.Operation, err = k.Changes.Submit(state.KindMPSRestart, c.Caller.Name, node, plan, steps, a); err != nil {
		return err
	}
	return c.Reply(http.StatusAccepted, out)
}

// restartStep is the restart of MPS. The clients are named with their leases.
func (k *Control) restartStep(want *state.Desired, g *observe.GPU) step.Step {
	s := planner.RestartMPS(want, g)
	leaseOf := k.Attribution.LeaseLookup(len(s.Disturbs))
	for i := range s.Disturbs {
		if lease, ok := leaseOf(s.Disturbs[i].PID); ok {
			s.Disturbs[i].Text = "lease " + lease
		}
	}
	return s
}

// PostDrain closes the MPS of a GPU to new leases. Those that run are not disturbed.
func (k *Control) PostDrain(c *server.Call) error { return k.postDrain(c, true) }

// PostResume ends PostDrain.
func (k *Control) PostResume(c *server.Call) error { return k.postDrain(c, false) }

func (k *Control) postDrain(c *server.Call, drain bool) error {
	node, want := k.Observer.Last(), k.State.Desired()
	g, err := planner.GPUNamed(node, c.R.PathValue("id"))
	if err != nil {
		return err
	}
	id := g.Identity.UUID
	out := api.MPSDrainResult{SchemaVersion: 1, GPU: string(id), Leases: []string{}}
	if _, was := k.State.Stored().DrainedMPS[id]; drain || !was { // One that left MPS mode can be resumed.
		if _, err := planner.MPSGPU(want, node, string(id)); err != nil {
			return err
		}
	}
	err = k.State.Store.Update(func(s *store.State) error {
		_, was := s.DrainedMPS[id]
		if out.Changed = was != drain; !out.Changed {
			return nil
		}
		if drain {
			if s.DrainedMPS == nil {
				s.DrainedMPS = map[gpu.UUID]store.DrainedMPS{}
			}
			s.DrainedMPS[id] = store.DrainedMPS{By: c.Caller.Name, Since: k.Now()}
		} else {
			delete(s.DrainedMPS, id)
		}
		return nil
	})
	if err != nil {
		return &api.Error{Kind: api.KindInternal, Message: "cannot record which GPUs are drained: " + err.Error(), Hint: "free space in " + k.StateDir}
	}
	verb, event := "resumed", "mps.resumed"
	if drain {
		verb, event = "drained", "mps.drained"
	}
	c.Note.GPU, c.Note.Text = string(id), "no change"
	if out.Changed {
		c.Note.Text = verb + " MPS"
		k.Events.Publish(api.Event{Kind: event, GPU: string(id), Message: fmt.Sprintf("%s %s MPS of GPU %d", c.Caller.Name, verb, g.Identity.Index)})
		k.Refresh(c.Ctx(), node)
	}
	if d, ok := k.State.Stored().DrainedMPS[id]; ok {
		wire := api.MPSDrain(d)
		out.Drained = &wire
	}
	for _, l := range k.Table.Live() {
		if slices.Contains(l.Place.GPUs, id) {
			out.Leases = append(out.Leases, l.ID)
		}
	}
	return c.Reply(http.StatusOK, out)
}
