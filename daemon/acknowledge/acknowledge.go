package acknowledge

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/adminaction"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/store"
)

const (
	// grace is how long after the start a condition of the previous run may be absent: the first passes of the loops find what
	// is still so.
	grace = 5 * time.Minute
	// interval is how often acknowledgements of conditions that ended are removed.
	interval = 10 * time.Second
	// longest bounds an acknowledgement that has an end.
	longest = 366 * 24 * time.Hour
)

// Acknowledgements are the acknowledged conditions.
type Acknowledgements struct {
	*report.Reporter
	State *state.State
	Began time.Time // of the daemon
	Wake  loop.Wake // there is another acknowledgement

	mu   locks.Mutex[locks.Leaf] // guards seen
	seen map[string]time.Time    // by id: since when the acknowledged condition was so when it was last seen
}

// Annotate adds the acknowledgements to conditions. It changes the list that it is given.
func (a *Acknowledgements) Annotate(list []api.Condition) []api.Condition {
	all := a.State.Stored().Acknowledged
	if len(all) == 0 {
		return list
	}
	now := a.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range list {
		c := &list[i]
		if k, ok := all[c.ID]; ok && !expired(k, now) && a.sameLocked(c) {
			c.Acknowledged = wire(k)
		}
	}
	return list
}

// sameLocked reports whether a condition is the one that was acknowledged: one that ended and came back is another one.
func (a *Acknowledgements) sameLocked(c *api.Condition) bool {
	since, ok := a.seen[c.ID]
	return !ok || since.Equal(c.Since)
}

func expired(k store.Acknowledged, now time.Time) bool {
	return !k.Until.IsZero() && !now.Before(k.Until)
}

func wire(k store.Acknowledged) *api.Acknowledgement {
	out := &api.Acknowledgement{By: k.By, At: k.At, Reason: k.Reason}
	if !k.Until.IsZero() {
		out.Until = &k.Until
	}
	return out
}

// Run removes acknowledgements when their time or their condition has ended, until ctx ends.
func (a *Acknowledgements) Run(ctx context.Context) {
	for {
		a.prune()
		d := a.next()
		if _, ok := a.Wake.Sleep(ctx, d); !ok {
			return
		}
	}
}

// next is how long to wait: until the first one expires.
func (a *Acknowledgements) next() time.Duration {
	all := a.State.Stored().Acknowledged
	if len(all) == 0 {
		return time.Hour // The wake-up ends it.
	}
	d, now := interval, a.Now()
	for _, k := range all {
		if !k.Until.IsZero() {
			d = min(d, max(k.Until.Sub(now), 0)+time.Millisecond)
		}
	}
	return d
}

// prune removes what has ended.
func (a *Acknowledgements) prune() {
	all := a.State.Stored().Acknowledged
	if len(all) == 0 {
		return
	}
	list, now := a.Conditions.List(), a.Now()
	ended := map[string]string{}
	a.mu.Lock()
	for id, k := range all {
		i := slices.IndexFunc(list, func(c api.Condition) bool { return c.ID == id })
		_, was := a.seen[id]
		switch {
		case expired(k, now):
			ended[id] = "its time has ended, and the condition has not"
			if i < 0 {
				ended[id] = "its time has ended"
			}
		case i >= 0 && a.sameLocked(&list[i]):
			a.seeLocked(&list[i])
		case i >= 0 || was || now.Sub(a.Began) >= grace:
			ended[id] = "the condition has ended"
		}
	}
	a.mu.Unlock()
	if len(ended) == 0 {
		return
	}
	err := a.State.Store.Update(func(s *store.State) error {
		for id := range ended {
			if s.Acknowledged[id].At.Equal(all[id].At) { // It was not acknowledged again.
				delete(s.Acknowledged, id)
			} else {
				delete(ended, id)
			}
		}
		return nil
	})
	if err != nil {
		a.Log.Warn("cannot record that acknowledgements ended", "error", err)
		return // What has expired is not shown in any case; the next pass tries again.
	}
	a.mu.Lock()
	for id := range ended {
		delete(a.seen, id)
	}
	a.mu.Unlock()
	for id, why := range ended {
		a.Events.Publish(api.Event{Kind: "condition.unacknowledged", Message: "condition " + id + " is no longer acknowledged: " + why})
	}
	a.Invalidate()
}

func (a *Acknowledgements) seeLocked(c *api.Condition) {
	if a.seen == nil {
		a.seen = map[string]time.Time{}
	}
	a.seen[c.ID] = c.Since
}

// PostAck acknowledges a condition. To acknowledge it again replaces the time and the reason.
func (a *Acknowledgements) PostAck(c *server.Call) error {
	q, err := server.Decode[api.AcknowledgeRequest](c)
	if err != nil {
		return err
	}
	reason, err := server.Reason("acknowledge a condition", q.Reason)
	if err != nil {
		return err
	}
	k := store.Acknowledged{By: c.Caller.Name, At: a.Now(), Reason: reason}
	switch d := q.For; {
	case d != nil && (time.Duration(*d) < time.Second || time.Duration(*d) > longest):
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot acknowledge a condition for %s: it may be 1s to %s", d, api.Duration(longest)),
			Hint:    "without a time it is acknowledged until it ends",
		}
	case d != nil:
		k.Until = k.At.Add(time.Duration(*d))
	}
	cond, err := a.find(c)
	if err != nil {
		return err
	}
	return a.answer(c, cond, "acknowledged", func(s *store.State) bool {
		if s.Acknowledged == nil {
			s.Acknowledged = map[string]store.Acknowledged{}
		}
		s.Acknowledged[cond.ID] = k
		return true
	}, func(context.Context) {
		a.mu.Lock()
		a.seeLocked(cond)
		a.mu.Unlock()
		a.Wake.Set()
	})
}

// PostUnack ends an acknowledgement.
func (a *Acknowledgements) PostUnack(c *server.Call) error {
	cond, err := a.find(c)
	if err != nil {
		return err
	}
	return a.answer(c, cond, "unacknowledged", func(s *store.State) bool {
		_, was := s.Acknowledged[cond.ID]
		delete(s.Acknowledged, cond.ID)
		return was
	}, func(context.Context) {})
}

// find returns the condition of a request.
func (a *Acknowledgements) find(c *server.Call) (*api.Condition, error) {
	id := c.R.PathValue("id")
	list := a.Conditions.List()
	i := slices.IndexFunc(list, func(c api.Condition) bool { return c.ID == id })
	if i < 0 {
		return nil, &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("there is no condition %q", id),
			Hint:    "'gpushare condition list' shows them; one that has ended needs no acknowledgement",
		}
	}
	return &list[i], nil
}

func (a *Acknowledgements) answer(
	c *server.Call, cond *api.Condition, what string, update func(*store.State) bool, refresh func(context.Context),
) error {
	actions := adminaction.Actions{Reporter: a.Reporter, State: a.State, Refresh: refresh}
	changed, err := actions.Do(c, &adminaction.Action{
		Records: "which conditions are acknowledged",
		Update:  update,
		Event:   "condition." + what,
		GPU:     cond.GPU,
		Tenant:  cond.Tenant,
		Done:    what + " " + cond.ID,
		Note:    what + " " + cond.ID + ": " + cond.Message,
	})
	if err != nil {
		return err
	}
	one := a.Annotate([]api.Condition{*cond})
	return c.Reply(http.StatusOK, api.AcknowledgeResult{SchemaVersion: 1, Changed: changed, Condition: one[0]})
}
