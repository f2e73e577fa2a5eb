package daemon

import (
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
)

// While a change is under way nothing is mended: it would give access before the hardware is what it is given for.
func TestNothingIsMendedInAChange(t *testing.T) {
	d := bare()
	d.changes.open("apply-1", &engine.Record{Steps: []step.Step{{GPU: "GPU-1"}, {GPU: ""}}})
	if err := d.converger.mend(t.Context()); err != nil { // It would reach for an observer, and there is none.
		t.Fatal(err)
	}
	if n := d.Counters.converges.Load(); n != 0 {
		t.Errorf("%d times something was mended", n)
	}
	ch := d.state.Changing()
	if ch.operation != "apply-1" || len(ch.gpus) != 1 || !ch.gpus["GPU-1"] {
		t.Errorf("the change under way is %+v", ch)
	}
}

func TestFailures(t *testing.T) {
	got := failures(engine.Outcome{
		"": {State: engine.Held, Reason: "of the node"}, "GPU-1": {State: engine.Reached}, "GPU-2": {State: engine.Undone, Reason: "why"}, "GPU-3": {State: engine.Held, Reason: "worse"},
	})
	want := map[gpu.UUID]string{"GPU-2": "why", "GPU-3": "worse"}
	if len(got) != len(want) || got["GPU-2"] != "why" || got["GPU-3"] != "worse" {
		t.Errorf("failures are %v, want %v", got, want)
	}
}
