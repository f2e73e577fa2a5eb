package cordon

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// Cordons are the GPUs that an administrator closed to new leases.
type Cordons struct {
	*report.Reporter
	StateDir string
	State    *state.State
	Observer *observe.Observer
	Table    *lease.Table
	Refresh  func(ctx context.Context, node *observe.Node) // the converge loop's, after the state has changed
}

// PostCordon closes a GPU to new leases. Those that run are not disturbed. To cordon it again with another reason replaces it.
func (k *Cordons) PostCordon(c *server.Call) error {
	q, err := server.Decode[api.CordonRequest](c)
	if err != nil {
		return err
	}
	reason, err := server.Reason("cordon a GPU", q.Reason)
	if err != nil {
		return err
	}
	return k.change(c, "cordoned", func(s *store.State, at store.Where) bool {
		was := closing.Cordoned.At(s, at)
		if was != nil && (reason == "" || was.Reason == reason) {
			return false
		}
		closing.Cordoned.Close(s, store.Closure{Where: at, By: c.Caller.Name, Since: k.Now(), Reason: reason})
		return true
	})
}

// PostUncordon ends PostCordon.
func (k *Cordons) PostUncordon(c *server.Call) error {
	return k.change(c, "uncordoned", closing.Cordoned.Open)
}

// change records a change of one GPU, and answers with its leases. update reports whether there is one.
func (k *Cordons) change(c *server.Call, what string, update func(s *store.State, at store.Where) bool) error {
	node := k.Observer.Last()
	g, err := planner.GPUNamed(node, c.R.PathValue("id"))
	if err != nil {
		return err
	}
	id := g.Identity.UUID
	out := api.CordonResult{SchemaVersion: 1, GPU: string(id), Index: g.Identity.Index, Leases: []string{}}
	err = k.State.Store.Update(func(s *store.State) error {
		out.Changed = update(s, closing.OnGPU(id))
		return nil
	})
	if err != nil {
		return &api.Error{
			Kind:    api.KindInternal,
			Message: "cannot record which GPUs are cordoned: " + err.Error(),
			Hint:    "nothing was changed; free space in " + k.StateDir,
		}
	}
	c.Note.GPU, c.Note.Text = string(id), "no change"
	now := closing.Cordoned.At(k.State.Stored(), closing.OnGPU(id))
	if out.Changed {
		c.Note.Text = what
		if now != nil && now.Reason != "" {
			c.Note.Text += ": " + now.Reason
		}
		k.Events.Publish(
			api.Event{Kind: "gpu." + what, GPU: string(id), Message: fmt.Sprintf("%s %s %s", c.Caller.Name, what, g.Identity.Name())},
		)
		k.Refresh(c.Ctx(), node)
	}
	out.Cordoned = closing.WireCordon(now)
	for _, l := range k.Table.Live() {
		if slices.Contains(l.Place.GPUs, id) {
			out.Leases = append(out.Leases, l.ID)
		}
	}
	return c.Reply(http.StatusOK, out)
}
