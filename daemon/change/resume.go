package change

import (
	"context"
	"encoding/json"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/engine"
)

// Resume resumes the change that a previous run of the daemon left open, with the authority that it had.
func (cs *Changes) Resume(ctx context.Context) {
	raw := cs.State.Stored().Change
	if len(raw) == 0 {
		return
	}
	var r engine.Record
	if err := json.Unmarshal(raw, &r); err != nil {
		cs.Conditions.Set(
			"state", "change", "the open change cannot be read: "+err.Error(), "its steps are not resumed; apply the spec again",
		)
		return
	}
	cs.Log.Info(
		"an open change is resumed", "message_id", report.MessageChangeResumed, "operation", r.ID, "by", r.By, "steps", len(r.Steps),
	)
	op := cs.Operations.Begin(
		r.ID, "resume", r.By, api.Plan{SchemaVersion: 1, Generation: cs.State.Desired().Generation, Steps: state.WireSteps(r.Steps)},
	)
	cs.Open(op.ID, &r)
	cs.Tasks.Go(func() {
		run, cancel := context.WithTimeout(cs.Tasks.Context(), changeTimeout)
		defer cancel()
		cs.carryOut(run, r, op.ID, true)
	})
}
