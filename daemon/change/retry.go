package change

import (
	"cmp"
	"context"

	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
)

// RetryGPU retries a held or unresponsive GPU, with the authority of the request.
func (cs *Changes) RetryGPU(c *server.Call) error {
	node, want := cs.Observer.Last(), cs.State.Desired()
	name, a := c.R.PathValue("id"), authorityOf(c)
	g, err := planner.GPUNamed(node, name)
	if err != nil && cs.State.RefuseMissing(node, name) == nil {
		return err
	}
	done, err := cs.lockChanges(c.Ctx())
	if err != nil {
		return err
	}
	defer done()
	going, err := server.GoOn(c.Ctx()) // The GPU and its health are tried, and what follows from that has to follow.
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(going, observe.Timeout)
	defer cancel()
	if g == nil { // It was missing.
		cs.Observer.Invalidate()
		if node = cs.Observer.Observe(ctx); node.DriverErr != nil {
			return report.DriverError(node.DriverErr)
		}
		g, err = planner.GPUNamed(node, name)
		if err := cmp.Or(cs.State.RefuseMissing(node, name), err); err != nil {
			return err
		}
	}
	id := g.Identity.UUID
	if err := cs.Driver.Retry(ctx, id); err != nil {
		if gpu.IsAny(err, gpu.ErrNotFound) { // The driver was loaded again without it, which the last observation does not know.
			cs.Observer.Invalidate()
			return cmp.Or(cs.State.RefuseMissing(cs.Observer.Observe(ctx), name), error(report.DriverError(err)))
		}
		return report.DriverError(err)
	}
	node = cs.Observer.Observe(ctx)
	if err := cs.Health.Retry(ctx, id); err != nil {
		return err
	}
	p := &state.Proposal{Intent: state.ToRetry, GPU: id, Want: want, Node: node, Command: "gpushare gpu retry " + name}
	if want.Spec != nil {
		if err := cs.planProposal(ctx, p, remarks{}, a); err != nil {
			return err
		}
	}
	op, err := cs.Accept(going, p, c.Caller.Name, a)
	if err != nil {
		return err
	}
	c.Note.Text = p.AuditText(a.Force)
	if op == nil {
		done := cs.Operations.Begin("retry-of-"+name, "retry", c.Caller.Name, p.Plan)
		done = cs.Operations.End(done.ID, "done", nil)
		op = &done
	}
	return c.Reply(200, op)
}
