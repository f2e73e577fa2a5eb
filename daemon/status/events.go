package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
)

// seesEvents returns whether a caller sees an event.
func seesEvents(c *server.Caller) func(*api.Event) bool {
	return func(e *api.Event) bool {
		return e.Tenant != "" && c.Sees(e.Tenant) || e.Tenant == "" && c.ReadsAll()
	}
}

// GetEvents streams events from now on. What the caller may see is what they may see when an event is sent.
func (v *Viewer) GetEvents(c *server.Call) error {
	var may atomic.Pointer[server.Caller]
	may.Store(c.Caller)
	sub, unsubscribe := v.Events.SubscribeTo(func(e *api.Event) bool { return seesEvents(may.Load())(e) })
	defer unsubscribe()
	changed := make(chan struct{}, 1)
	ctx, stop := c.While(func(now *server.Caller) error {
		if was := may.Swap(now); len(noLonger(was, now)) > 0 {
			select {
			case changed <- struct{}{}:
			default: // The last one was not reported yet.
			}
		}
		return c.Allowed(now)
	})
	defer stop()
	s := eventStream{out: json.NewEncoder(c.W), w: c.W, now: v.Now, seen: c.Caller}
	c.W.Header().Set("Content-Type", "application/x-ndjson")
	c.W.WriteHeader(http.StatusOK)
	s.flush() // If the caller has closed the connection, the context ends.
	// A line each minute lets both ends notice that the connection is closed.
	alive := time.NewTicker(time.Minute)
	defer alive.Stop()
	for {
		var err error
		select {
		case e := <-sub.C:
			if now := c.Now(); c.Allowed(now) == nil && (seesEvents(now)(e) || e.Kind == "gap") { // It may have waited here.
				err = s.send(e)
			}
		case <-changed:
			err = s.reportLost(c.Now())
		case <-alive.C:
			err = s.send(&api.Event{Kind: "alive"})
		case <-ctx.Done():
			if lost := server.Lost(ctx); lost != nil {
				_ = s.send(&api.Event{Kind: api.EventRoleEnded, Message: lost.Error()}) // The stream ends either way.
			}
			return nil
		}
		if err != nil {
			return nil // The caller has closed the connection.
		}
	}
}

// eventStream writes events to one reader.
type eventStream struct {
	out  *json.Encoder
	w    http.ResponseWriter
	now  func() time.Time
	seen *server.Caller // the reader as they were when the last loss of a right was reported
}

func (s *eventStream) flush() { _ = http.NewResponseController(s.w).Flush() }

func (s *eventStream) send(e *api.Event) error {
	if e.At.IsZero() {
		e.At = s.now()
	}
	server.StartPart(s.w)
	if err := s.out.Encode(e); err != nil {
		return err
	}
	s.flush()
	return nil
}

// reportLost says which tenants' events do not come any more.
func (s *eventStream) reportLost(now *server.Caller) error {
	lost := noLonger(s.seen, now)
	s.seen = now
	if len(lost) == 0 {
		return nil
	}
	return s.send(&api.Event{Kind: api.EventRoleLost, Message: now.Name + " sees no events of " + strings.Join(lost, ", ") + " any more"})
}

// noLonger names whose events a caller saw and does not see any more.
func noLonger(was, now *server.Caller) []string {
	var lost []string
	if was.ReadsAll() && !now.ReadsAll() {
		lost = append(lost, "the node and of other tenants")
	}
	for _, t := range was.Tenants {
		if !now.Sees(t) {
			lost = append(lost, "tenant "+t)
		}
	}
	return lost
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
