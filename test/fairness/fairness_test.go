package fairness

import (
	"math"
	"testing"
	"time"
)

// TestSideBySideIsEqual checks that the engine shares the GPU as hardware does by itself: equal parts, whatever the weights.
// Otherwise the other figures would mean nothing.
func TestSideBySideIsEqual(t *testing.T) {
	sc := Scenario{Loads: queues(0, []float64{10, 90}, 400*ms, 5*ms), Long: time.Minute}
	if f := Run(sc, Variants()[0], SideBySide, 1); math.Abs(f.Bias-40) > 0.5 || f.Busy < 99.9 || f.Longest != 0 {
		t.Errorf("10/90 side by side: %v", f)
	}
}

// TestAloneIsNeverFrozen checks that a lease without a competitor loses nothing.
func TestAloneIsNeverFrozen(t *testing.T) {
	for _, v := range Variants() {
		if f := Run(Scenario{Loads: queues(0, []float64{30}, 50*ms)}, v, Enforced, 1); f.Freezes != 0 || f.Busy < 99.99 {
			t.Errorf("%s: %d freezes, %v", v.Name, f.Freezes, f)
		}
	}
}
