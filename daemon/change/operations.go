package change

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
)

// GetOperations lists the operations that run and the last that ended.
func (cs *Changes) GetOperations(c *server.Call) error {
	return c.Reply(200, api.OperationList{SchemaVersion: 1, Operations: cs.Operations.List()})
}

// GetOperation answers an operation. With wait= it waits for a newer version.
func (cs *Changes) GetOperation(c *server.Call) error {
	ctx, stop := c.WhileAllowed()
	defer stop()
	after := uint64(0)
	if w := c.Text("wait"); w != "" {
		var wait api.Duration
		if err := wait.UnmarshalText([]byte(w)); err != nil {
			return &api.Error{Kind: api.KindInvalid, Message: "cannot read wait: " + err.Error()}
		}
		var err error
		if after, err = strconv.ParseUint(c.Text("after"), 10, 64); err != nil {
			return &api.Error{Kind: api.KindInvalid, Message: "cannot read after: it must be a version"}
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(time.Duration(wait), time.Minute))
		defer cancel()
	}
	op, ok := cs.Operations.Get(ctx, c.R.PathValue("id"), after)
	if err := server.Lost(ctx); err != nil {
		return err
	}
	if !ok {
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: fmt.Sprintf("there is no operation %q", c.R.PathValue("id")),
			Hint:    "'gpushare operation list' shows those that are kept: the running and the last ones, until the daemon is restarted",
		}
	}
	return c.Reply(200, op)
}
