package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/adminaction"
	"github.com/gpushare/gpushare/daemon/attribution"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
)

// changes carries out steps as a change.
type changes interface {
	Exclusive(ctx context.Context, f func() error) error
	Submit(
		ctx context.Context, kind, caller string, node *observe.Node, plan api.Plan, steps []step.Step, a planner.Authority,
	) (*api.Operation, error)
}

// Control is what administrators do to MPS outside of a spec.
type Control struct {
	*adminaction.Actions
	Observer    *observe.Observer
	Attribution *attribution.Attribution
	Changes     changes
}

// PostRestart restarts the control daemon of one GPU or instance, and ends its clients if the request has the authority.
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
	g, d, err := planner.MPSDevice(want, node, c.R.PathValue("id"))
	if err != nil {
		return err
	}
	restart, err := planner.RestartMPS(want, g, d, k.State.ManagesInstance)
	if err != nil {
		return err
	}
	k.nameLeases(restart.Disturbs)
	steps := planner.Number([]step.Step{restart})
	plan := api.Plan{SchemaVersion: 1, Generation: want.Generation, Steps: state.WireSteps(steps), Disturbs: planner.Disturbs(steps)}
	k.State.Estimate(node, &plan)
	out := api.ApplyResult{Generation: want.Generation, Plan: plan, Checked: check, Changed: true}
	if check {
		return c.Reply(http.StatusOK, out)
	}
	c.Note.GPU, c.Note.Text = string(g.Identity.UUID), fmt.Sprintf("%s, force=%v", planner.DeviceName(g, d), a.Force)
	if err := planner.Admit(steps, a); err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok {
			e.Hint = fmt.Sprintf(
				"nothing was changed; wait until they end, or 'gpushare mps restart %s --force' terminates them",
				planner.MPSArguments(g, d),
			)
		}
		return err
	}
	if out.Operation, err = k.Changes.Submit(c.Ctx(), state.KindMPSRestart, c.Caller.Name, node, plan, steps, a); err != nil {
		return err
	}
	return c.Reply(http.StatusAccepted, out)
}

// nameLeases names the clients that a restart ends with their leases.
func (k *Control) nameLeases(clients []step.Subject) {
	leaseOf := k.Attribution.LeaseLookup(len(clients))
	for i := range clients {
		if lease, ok := leaseOf(clients[i].PID); ok {
			clients[i].Text = "lease " + lease
		}
	}
}

// PostDrain closes the MPS of a GPU or an instance to new leases. Those that run are not disturbed.
func (k *Control) PostDrain(c *server.Call) error { return k.postDrain(c, true) }

// PostResume ends PostDrain, and tenants that were held back get leases again.
func (k *Control) PostResume(c *server.Call) error { return k.postDrain(c, false) }

func (k *Control) postDrain(c *server.Call, drain bool) error {
	node, want, name := k.Observer.Last(), k.State.Desired(), c.R.PathValue("id")
	g, d, err := planner.DeviceNamed(node, name)
	if err != nil {
		return err
	}
	out := api.MPSDrainResult{SchemaVersion: 1, GPU: string(d.GPU)}
	if d.IsInstance() {
		out.Instance = new(api.MIGPlacement(d.Instance))
	}
	at := store.Where{GPU: d.GPU, Instance: d.Instance}
	heldBack := func(c *store.Closure) bool { return c.GPU == d.GPU && c.Instance == d.Instance }
	was := k.State.Stored()
	if drain || closing.Drained.At(was, at) == nil && !closing.HeldBack.Any(was, heldBack) { // One that left MPS mode can be resumed.
		if _, _, err := planner.MPSDevice(want, node, name); err != nil {
			return err
		}
	}
	update := func(s *store.State) bool {
		if !drain {
			resumed := closing.Drained.Open(s, at)
			return closing.HeldBack.OpenIf(s, heldBack) || resumed
		}
		if closing.Drained.At(s, at) != nil {
			return false
		}
		closing.Drained.Close(s, store.Closure{Where: at, By: c.Caller.Name, Since: k.Now()})
		return true
	}
	verb := "resumed"
	if drain {
		verb = "drained"
	}
	done := fmt.Sprintf("%s MPS of %s", verb, planner.DeviceName(g, d))
	out.Changed, err = k.Do(c, &adminaction.Action{
		Records: "which GPUs are drained",
		Update:  update,
		Event:   "mps." + verb,
		GPU:     string(d.GPU),
		Done:    done,
		Note:    done,
	})
	if err != nil {
		return err
	}
	out.Drained, out.Leases = closing.WireDrain(closing.Drained.At(k.State.Stored(), at)), k.LeasesAt(at)
	return c.Reply(http.StatusOK, out)
}
