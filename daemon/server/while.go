package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// Now returns the caller with the role that they have now. A request may last longer than a role.
func (c *Call) Now() *Caller {
	if c.identities == nil {
		return c.Caller
	}
	return c.identities.Caller(c.Caller.Peer)
}

// While returns a context that ends with the request, and with the error of may as soon as the caller as they are then has lost the
// right. The function ends the watch, and must be called.
func (c *Call) While(may func(*Caller) error) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(c.Ctx())
	if c.identities == nil {
		return ctx, func() { cancel(nil) }
	}
	ended := make(chan struct{})
	go func() { // ends with the request, or when the right has gone
		defer close(ended)
		for {
			next := c.identities.Next()
			if err := may(c.Now()); err != nil {
				cancel(anyMore(err))
				return
			}
			select {
			case <-next:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

// anyMore says of a refusal that it was not one before.
func anyMore(err error) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	later := *e
	what, reason, has := strings.Cut(e.Message, ": ")
	later.Message = what + " any more"
	if has {
		later.Message += ": " + reason
	}
	return &later
}

// WhileAllowed is While for the role that the route needs.
func (c *Call) WhileAllowed() (context.Context, func()) { return c.While(c.Allowed) }

// Allowed returns why a caller may not use the route of this call.
func (c *Call) Allowed(now *Caller) error {
	if c.route == nil || c.route.Access.allows(now) {
		return nil
	}
	return c.route.Access.denied(now, c.route.What)
}

// Lost returns the error with which While ended a context; nil: it has not ended, or otherwise.
func Lost(ctx context.Context) error {
	if e, ok := errors.AsType[*api.Error](context.Cause(ctx)); ok {
		return e
	}
	return nil
}

// SendLost ends an answer of text with the error of Lost, in a trailer: its status was sent before.
func (c *Call) SendLost(err error) {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return
	}
	if b, err := json.Marshal(e); err == nil {
		c.W.Header().Set(http.TrailerPrefix+api.ErrorTrailer, string(b))
	}
}

// AsAdmin returns why the caller may not act as an administrator: the directory has not confirmed that they are one.
func (c *Call) AsAdmin(what string) error {
	if c.identities == nil {
		return nil
	}
	_, err := c.identities.confirmed(c.Ctx(), Admin, c.Caller.Peer, what)
	return err
}
