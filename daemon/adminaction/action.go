package adminaction

import (
	"context"
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/lease"
)

// Actions carries out what administrators request.
type Actions struct {
	*report.Reporter
	State   *state.State
	Table   *lease.Table
	Refresh func(context.Context) // passes on what has changed
}

// Action is one request.
type Action struct {
	Records string                              // what is written: "which GPUs are cordoned"
	Update  func(s *store.State) (changed bool) // false: it is so already
	Event   string                              // the kind of its event
	GPU     string
	Tenant  string
	Done    string // "cordoned GPU 0": the event has who did it
	Note    string // for the audit
}

// Do carries out an action, and reports whether it changed something. After an error nothing is changed.
func (a *Actions) Do(c *server.Call, x *Action) (changed bool, err error) {
	ctx, err := server.GoOn(c.Ctx())
	if err != nil {
		return false, err
	}
	err = a.State.Record(x.Records, func(s *store.State) { changed = x.Update(s) })
	if err != nil {
		return false, err
	}
	c.Note.GPU, c.Note.Text = x.GPU, "no change"
	if !changed {
		return false, nil
	}
	c.Note.Text = x.Note
	a.Events.Publish(api.Event{Kind: x.Event, GPU: x.GPU, Tenant: x.Tenant, Message: c.Caller.Name + " " + x.Done})
	a.Refresh(ctx)
	a.Invalidate()
	return true, nil
}

// LeasesAt are the live leases on a GPU, or in an instance of it.
func (a *Actions) LeasesAt(at store.Where) []string {
	out := []string{}
	for _, l := range a.Table.Live() {
		if slices.Contains(l.Place.GPUs, at.GPU) && (at.Instance.Size == 0 || l.Place.Instance != nil && *l.Place.Instance == at.Instance) {
			out = append(out, l.ID)
		}
	}
	return out
}
