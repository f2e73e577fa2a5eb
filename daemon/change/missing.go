package change

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/planner"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/observe"
)

// findMissing looks again for a GPU that the last observation did not have under this name, because it was missing. unknown is the
// error of one that is not missing either.
func (cs *Changes) findMissing(ctx context.Context, last *observe.Node, name string, unknown error) (*observe.GPU, error) {
	if refusal := cs.missing(last, name); refusal == nil {
		return nil, unknown
	}
	ctx, cancel := context.WithTimeout(ctx, observe.Timeout)
	defer cancel()
	cs.Observer.Invalidate()
	node := cs.Observer.Observe(ctx)
	if node.DriverErr != nil {
		return nil, report.DriverError(node.DriverErr)
	}
	g, err := planner.GPUNamed(node, name)
	if err == nil {
		return g, nil
	}
	return nil, cmp.Or(cs.missing(node, name), err)
}

// missing refuses to try a GPU that the driver does not find: since when that is so, and what brings it back. nil if none of this
// name is missing.
func (cs *Changes) missing(node *observe.Node, name string) error {
	for i := range node.Missing {
		id := &node.Missing[i]
		if string(id.UUID) != name && (id.Index < 0 || fmt.Sprint(id.Index) != name) {
			continue
		}
		text := string(id.UUID)
		if id.Index >= 0 {
			text = fmt.Sprintf("GPU %d (%s)", id.Index, id.UUID)
		}
		if id.PCI != "" {
			text += " at " + id.PCI
		}
		reason := state.MissingReason
		if since := cs.State.Stored().MissingSince[id.UUID]; !since.IsZero() {
			reason = "the driver has not found it since " + since.Local().Format(time.DateTime)
		}
		return &api.Error{Kind: api.KindUnavailable, Message: "cannot try " + text + " again: it is missing: " + reason, Hint: state.MissingHint}
	}
	return nil
}
