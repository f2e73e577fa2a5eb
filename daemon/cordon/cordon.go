package cordon

import (
	"fmt"
	"net/http"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/adminaction"
	"github.com/gpushare/gpushare/daemon/closing"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// Cordons are the GPUs that an administrator closed to new leases.
type Cordons struct {
	*adminaction.Actions
	Observer *observe.Observer
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
	return k.change(c, "cordoned", reason, func(s *store.State, at store.Where) bool {
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
	return k.change(c, "uncordoned", "", closing.Cordoned.Open)
}

// change records a change of one GPU, and answers with its leases. update reports whether there is one.
func (k *Cordons) change(c *server.Call, what, reason string, update func(s *store.State, at store.Where) bool) error {
	g, err := planner.GPUNamed(k.Observer.Last(), c.R.PathValue("id"))
	if err != nil {
		return err
	}
	at := closing.OnGPU(g.Identity.UUID)
	note := what
	if reason != "" {
		note += ": " + reason
	}
	changed, err := k.Do(c, &adminaction.Action{
		Records: "which GPUs are cordoned",
		Update:  func(s *store.State) bool { return update(s, at) },
		Event:   "gpu." + what,
		GPU:     string(at.GPU),
		Done:    fmt.Sprintf("%s %s", what, g.Identity.Name()),
		Note:    note,
	})
	if err != nil {
		return err
	}
	return c.Reply(http.StatusOK, api.CordonResult{
		SchemaVersion: 1,
		GPU:           string(at.GPU),
		Index:         g.Identity.Index,
		Changed:       changed,
		Cordoned:      closing.WireCordon(closing.Cordoned.At(k.State.Stored(), at)),
		Leases:        k.LeasesAt(at),
	})
}
