package state

import (
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/step"
)

// Each intent has its row; each transition ends where nothing more is accepted, and stays the same kind of change on the same GPUs.
func TestIntents(t *testing.T) {
	origins := []Intent{ToApply, ToRetry, ToUnmanage}
	reached := map[Intent]bool{}
	for _, i := range origins {
		reached[i], reached[i.InForce()] = true, true
	}
	for i, rule := range intents {
		next, ok := intents[rule.inForce]
		switch {
		case !reached[i]:
			t.Errorf("no proposal can be to %s", i)
		case rule.kind == "":
			t.Errorf("the change to %s has no kind", i)
		case !ok:
			t.Errorf("to %s becomes %q, which has no row", i, rule.inForce)
		case next.accepts:
			t.Errorf("to %s is accepted a second time", i)
		case next.inForce != rule.inForce:
			t.Errorf("to %s becomes to %s, and then to %s", i, rule.inForce, next.inForce)
		case next.kind != rule.kind || next.removes != rule.removes || next.oneGPU != rule.oneGPU:
			t.Errorf("to %s becomes another change: to %s", i, rule.inForce)
		case !rule.accepts && rule.inForce != i:
			t.Errorf("to %s is for what is in force, and becomes to %s", i, rule.inForce)
		}
	}
	for i := range reached {
		if _, ok := intents[i]; !ok {
			t.Errorf("to %s has no row", i)
		}
	}
}

func TestProposals(t *testing.T) {
	steps := []step.Step{{ID: 1}}
	for _, c := range []struct {
		intent                  Intent
		enforce                 api.OnOff
		steps                   []step.Step
		runs, changes, concerns bool
	}{
		{ToApply, "on", steps, true, true, true},
		{ToApply, "on", nil, false, true, true},
		{ToApply, "observe", steps, false, true, true},
		{ToReapply, "on", steps, true, true, true},
		{ToReapply, "on", nil, false, false, true},
		{ToReapply, "observe", steps, false, false, true},
		{ToRetry, "on", steps, true, true, false},
		{ToRetry, "observe", steps, false, false, false},
		{ToUnmanage, "observe", steps, true, true, true},
		{ToUnmanage, "observe", nil, false, true, true},
		{ToRemoveRest, "observe", steps, true, true, true},
		{ToRemoveRest, "observe", nil, false, false, true},
	} {
		p := &Proposal{
			Intent: c.intent,
			GPU:    "GPU-1",
			Want:   &Desired{Spec: &api.Spec{Node: api.NodeSpec{Enforce: c.enforce}}},
			Steps:  c.steps,
		}
		p.Plan.Empty = len(c.steps) == 0
		if p.Runs() != c.runs || p.Changes() != c.changes || p.Concerns("GPU-2") != c.concerns || !p.Concerns("GPU-1") {
			t.Errorf("to %s, enforce %s, %d steps: runs %v, changes %v, concerns another GPU %v",
				c.intent, c.enforce, len(c.steps), p.Runs(), p.Changes(), p.Concerns("GPU-2"))
		}
	}
}
