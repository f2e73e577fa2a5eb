package gpu

import (
	"math"
	"testing"
)

// What is no percentage is not known. Counters that are read one after the other may give a little more than 100.
func TestPercentage(t *testing.T) {
	for v, want := range map[float64]float64{0: 0, 37.5: 37.5, 100: 100, 100.4: 100} {
		if got := Percentage(v); got == nil || *got != want {
			t.Errorf("%v is %v, want %v", v, got, want)
		}
	}
	for _, v := range []float64{-0.1, 101.5, 700, math.NaN(), math.Inf(1), math.Inf(-1)} {
		if got := Percentage(v); got != nil {
			t.Errorf("%v is %v", v, *got)
		}
	}
}
