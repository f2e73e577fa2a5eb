package status

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
)

// GetEvents streams events from now on; with a time it lists those that are kept instead.
func (v *Viewer) GetEvents(c *server.Call) error {
	sees := func(e *api.Event) bool {
		return e.Tenant != "" && c.Caller.Sees(e.Tenant) || e.Tenant == "" && (c.Caller.Admin || c.Caller.Observer)
	}
	if c.Text("since") != "" || c.Text("until") != "" {
		return v.listEvents(c, sees)
	}
	sub, stop := v.Events.SubscribeTo(sees)
	defer stop()
	c.W.Header().Set("Content-Type", "application/x-ndjson")
	c.W.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(c.W)
	_ = flush.Flush() // If the caller has closed the connection, the context ends.
	out := json.NewEncoder(c.W)
	// A line each minute lets both ends notice that the connection is closed.
	alive := time.NewTicker(time.Minute)
	defer alive.Stop()
	for {
		select {
		case e := <-sub.C:
			server.StartPart(c.W)
			if out.Encode(e) != nil {
				return nil
			}
		case <-alive.C:
			server.StartPart(c.W)
			if out.Encode(api.Event{At: v.Now(), Kind: "alive"}) != nil {
				return nil
			}
		case <-c.Ctx().Done():
			return nil
		}
		_ = flush.Flush()
	}
}

// listEvents writes the events that are kept, and ends.
func (v *Viewer) listEvents(c *server.Call, sees func(*api.Event) bool) error {
	since, until, err := c.Period(v.Now())
	if err != nil {
		return err
	}
	c.W.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(c.W)
	for _, e := range v.Events.Recent(sees, since, until) {
		server.StartPart(c.W)
		if out.Encode(e) != nil {
			return nil
		}
	}
	return nil
}
