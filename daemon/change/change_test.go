package change

import (
	"testing"

	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
)

func TestFailures(t *testing.T) {
	got := failures(engine.Outcome{
		"": {State: engine.Held, Reason: "of the node"}, "GPU-1": {State: engine.Reached}, "GPU-2": {State: engine.Undone, Reason: "why"}, "GPU-3": {State: engine.Held, Reason: "worse"},
	})
	want := map[gpu.UUID]string{"GPU-2": "why", "GPU-3": "worse"}
	if len(got) != len(want) || got["GPU-2"] != "why" || got["GPU-3"] != "worse" {
		t.Errorf("failures are %v, want %v", got, want)
	}
}

// A change that is open says which GPUs it touches.
func TestOpen(t *testing.T) {
	cs := &Changes{State: state.NewState(nil, false)}
	cs.Open("apply-1", &engine.Record{Steps: []step.Step{{GPU: "GPU-1"}, {GPU: ""}}})
	if ch := cs.State.Changing(); ch.Operation != "apply-1" || len(ch.GPUs) != 1 || !ch.GPUs["GPU-1"] {
		t.Errorf("the change under way is %+v", ch)
	}
}
