package daemon

import (
	"testing"

	"github.com/gpushare/gpushare/internal/engine"
	"github.com/gpushare/gpushare/internal/step"
)

// While a change is under way nothing is mended: it would give access before the hardware is what it is given for.
func TestNothingIsMendedInAChange(t *testing.T) {
	d := bare()
	d.changes.Open("apply-1", &engine.Record{Steps: []step.Step{{GPU: "GPU-1"}, {GPU: ""}}})
	if err := d.converger.Mend(t.Context()); err != nil { // It would reach for an observer, and there is none.
		t.Fatal(err)
	}
	if n := d.Counters.Converges.Load(); n != 0 {
		t.Errorf("%d times something was mended", n)
	}
	ch := d.state.Changing()
	if ch.Operation != "apply-1" || len(ch.GPUs) != 1 || !ch.GPUs["GPU-1"] {
		t.Errorf("the change under way is %+v", ch)
	}
}
