package change

import (
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/store"
)

// What went while nobody looked was taken by a reset; what goes under our eyes is somebody's doing.
func TestAResetIsToldFromDrift(t *testing.T) {
	whole, empty := observetest.Device(true, observetest.Instance(9, 0)), observetest.Device(true)
	lost := observetest.With(empty, func(g *observe.GPU) { g.Err = gpu.ErrLost })
	achieved := store.Achieved{MIG: true, Layout: whole.Instances}
	for _, c := range []struct {
		name  string
		looks []observe.GPU
		a     store.Achieved
		wiped bool // at the last
	}{
		{"the first look of a life finds it whole", []observe.GPU{whole}, achieved, false},
		{"the first look of a life finds nothing", []observe.GPU{empty}, achieved, true},
		{"it goes between two looks", []observe.GPU{whole, empty}, achieved, false},
		{"it was lost and comes back with nothing", []observe.GPU{whole, lost, empty}, achieved, true},
		{"it is lost", []observe.GPU{whole, lost}, achieved, false},
		{"it was lost and comes back whole", []observe.GPU{whole, lost, whole}, achieved, false},
		{"it was lost, came back, and somebody empties it", []observe.GPU{whole, lost, whole, empty}, achieved, false},
		{"it never had any", []observe.GPU{empty}, store.Achieved{MIG: true}, false},
		{"only a part is gone", []observe.GPU{observetest.Device(true, observetest.Instance(19, 0))}, achieved, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s sight
			for i, g := range c.looks {
				node := &observe.Node{GPUs: []observe.GPU{g}}
				if last := i == len(c.looks)-1; last && s.wiped(&c.a, node, observetest.One) != c.wiped {
					t.Errorf("wiped is not %v", c.wiped)
				}
				s.note(node)
			}
		})
	}
}
