package change

import (
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/store"
)

// What went while nobody looked was taken by a reset; what goes under our eyes is somebody's doing.
func TestResetIsDistinguishedFromDrift(t *testing.T) {
	complete, empty := observetest.Device(true, observetest.Instance(9, 0)), observetest.Device(true)
	lost := observetest.With(empty, func(g *observe.GPU) { g.Err = gpu.ErrLost })
	achieved := store.Achieved{MIG: true, Layout: complete.Instances}
	for _, c := range []struct {
		name         string
		observations []observe.GPU
		a            store.Achieved
		reset        bool // at the last
	}{
		{"the first look of a life finds it whole", []observe.GPU{complete}, achieved, false},
		{"the first look of a life finds nothing", []observe.GPU{empty}, achieved, true},
		{"it goes between two looks", []observe.GPU{complete, empty}, achieved, false},
		{"it was lost and comes back with nothing", []observe.GPU{complete, lost, empty}, achieved, true},
		{"it is lost", []observe.GPU{complete, lost}, achieved, false},
		{"it was lost and comes back whole", []observe.GPU{complete, lost, complete}, achieved, false},
		{"it was lost, came back, and somebody empties it", []observe.GPU{complete, lost, complete, empty}, achieved, false},
		{"it never had any", []observe.GPU{empty}, store.Achieved{MIG: true}, false},
		{"only a part is gone", []observe.GPU{observetest.Device(true, observetest.Instance(19, 0))}, achieved, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s resetDetector
			for i, g := range c.observations {
				node := &observe.Node{GPUs: []observe.GPU{g}}
				if last := i == len(c.observations)-1; last && s.wasReset(&c.a, node, observetest.One) != c.reset {
					t.Errorf("wiped is not %v", c.reset)
				}
				s.note(node)
			}
		})
	}
}
