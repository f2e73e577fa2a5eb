package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
)

// seesEvents returns whether a caller sees an event.
func seesEvents(c *server.Caller) func(*api.Event) bool {
	return func(e *api.Event) bool {
		return e.Tenant != "" && c.Sees(e.Tenant) || e.Tenant == "" && (c.Admin || c.Observer)
	}
}

// GetEvents streams events from now on.
func (v *Viewer) GetEvents(c *server.Call) error {
	sub, stop := v.Events.SubscribeTo(seesEvents(c.Caller))
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

// GetKeptEvents lists the events that are kept.
func (v *Viewer) GetKeptEvents(c *server.Call) error {
	since, until, err := c.Period(v.Now())
	if err != nil {
		return err
	}
	var list bytes.Buffer
	out := json.NewEncoder(&list)
	for _, e := range v.Events.Recent(seesEvents(c.Caller), since, until) {
		if err := out.Encode(e); err != nil {
			return fmt.Errorf("internal error: cannot encode an event: %w", err)
		}
	}
	return c.ReplyText(http.StatusOK, "application/x-ndjson", list.Bytes())
}
