package change

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/spec"
)

// PutSpec is apply: decode, resolve, observe, plan, admit, persist, and then the steps.
func (cs *Changes) PutSpec(c *server.Call) error {
	body, err := c.Body()
	if err != nil {
		return err
	}
	a := authorityOf(c)
	check, file := c.Flag("check"), c.Text("file")
	if file == "" || file == "-" {
		file = "the spec"
	}
	match, err := ifMatch(c.R.Header.Get("If-Match"))
	if err != nil {
		return err
	}
	s, err := spec.Decode(file, body)
	if err != nil {
		return err
	}
	d, err := cs.Specs.OnlyFromFile(spec.NewDocument(file, body, s), check)
	if err != nil {
		return err
	}
	if !check {
		done, err := cs.lockChanges(c.Ctx())
		if err != nil {
			return err
		}
		defer done()
	}
	p, err := cs.propose(c.Ctx(), d, match, a)
	if p != nil && c.Flag("diff") {
		p.Plan.Diff = cs.Specs.Diff(p.YAML)
	}
	if err != nil {
		return refusal(err, p, check)
	}
	out := api.ApplyResult{Generation: p.Want.Generation, Plan: p.Plan, Checked: check, Changed: p.Changes()}
	if check || !p.Changes() {
		c.Note.Text = "no changes"
		return c.Reply(http.StatusOK, out)
	}
	op, err := cs.Accept(c.Ctx(), p, c.Caller.Name, a)
	if err != nil {
		return err
	}
	c.Note.Text = p.AuditText(a.Force)
	out.Operation = op
	status := http.StatusOK
	if op != nil {
		status = http.StatusAccepted
	}
	return c.Reply(status, out)
}

// authorityOf is what the caller permits for one change.
func authorityOf(c *server.Call) planner.Authority {
	a := planner.Authority{Force: c.Flag("force"), AllowReset: c.Flag("allow-reset")}
	if list := c.Text("reset"); list != "" {
		a.AllowReset, a.Resets = true, strings.Split(list, ",")
	}
	if list := c.Text("drained"); list != "" {
		a.Drained = strings.Split(list, ",")
	}
	return a
}

// ApplyDocument applies a spec without any option, if it says something else than the one in force.
func (cs *Changes) ApplyDocument(ctx context.Context, d *spec.Document, by string) (*api.ApplyResult, error) {
	done, err := cs.lockChanges(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	p, err := cs.propose(ctx, d, nil, planner.Authority{})
	if err != nil {
		return nil, err
	}
	out := &api.ApplyResult{Generation: p.Want.Generation, Plan: p.Plan, Changed: p.Intent.Accepts()}
	if !p.Intent.Accepts() {
		return out, nil
	}
	if out.Operation, err = cs.Accept(ctx, p, by, planner.Authority{}); err == nil {
		cs.Audit(by, p.Intent.Kind(), p.AuditText(false))
	}
	return out, err
}

// refusal is why a proposal is refused. A check shows its plan nevertheless: what is refused is seen best next to it. Where a permission
// is asked for, the plan is what it is asked for.
func refusal(err error, p *state.Proposal, check bool) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || p == nil || p.Plan.SchemaVersion == 0 || !check && e.Kind != api.KindNeedsPermission {
		return err
	}
	out := *e
	out.Plan = &p.Plan
	return &out
}

func ifMatch(header string) (*uint64, error) {
	if header == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(strings.Trim(header, `"`), 10, 64)
	if err != nil {
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot read If-Match: it must be a generation"}
	}
	return &n, nil
}
