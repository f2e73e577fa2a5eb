package server

import (
	"context"
	"fmt"
)

// Action is what a route does that changes something: its name in the audit, "apply", and what becomes of it when its caller leaves, or
// loses the right to it, before the answer. Until GoOn nothing is changed then. GoesOn and Operation make one.
type Action struct {
	Name    string
	Leaving Leaving
}

// Leaving is what becomes of a request after GoOn if its caller leaves.
type Leaving int

const (
	_            Leaving = iota // no route has it
	goesOn                      // it goes on to its end
	hasOperation                // what takes long is recorded with its steps, and the daemon carries it out, over a restart too
)

// GoesOn is an action that goes on to its end without its caller.
func GoesOn(name string) Action { return Action{name, goesOn} }

// Operation is an action that the daemon carries out.
func Operation(name string) Action { return Action{name, hasOperation} }

// going is what a request becomes when it begins to change something.
type going struct {
	ctx   context.Context
	begun bool
}

type goingKey struct{}

// goes gives a request the context that it has from GoOn on: it ends with the daemon. The function ends it, and must be called.
func (s *Server) goes(c *Call) (*going, func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Ctx()))
	stop := context.AfterFunc(s.Tasks.Context(), cancel)
	g := &going{ctx: ctx}
	c.R = c.R.WithContext(context.WithValue(c.Ctx(), goingKey{}, g))
	return g, func() {
		stop()
		cancel()
	}
}

// GoOn is called where a request begins to change something, before the first effect or record. It fails if the caller has left, or has
// lost the right to it: then nothing may be changed, also because what was read meanwhile may be incomplete. Else it returns the context
// for all that follows, which does not depend on the caller. The context of a loop of the daemon is returned as it is.
func GoOn(ctx context.Context) (context.Context, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("nothing was changed: %w", context.Cause(ctx))
	}
	g, ok := ctx.Value(goingKey{}).(*going)
	if !ok {
		return ctx, nil
	}
	g.begun = true
	return g.ctx, nil
}
