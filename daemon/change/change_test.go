package change

import (
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
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
