package change

import (
	"testing"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/observe/observetest"
	"github.com/gpushare/gpushare/internal/store"
)

// Instances that disappear while the GPU does not answer were lost by a reset; otherwise it is drift.
func TestResetIsDistinguishedFromDrift(t *testing.T) {
	complete, empty := observetest.Device(true, observetest.Instance(9, 0)), observetest.Device(true)
	restored := observe.GPU{} // By a change, before the loop observes it.
	lost := observetest.With(empty, func(g *observe.GPU) { g.Err = gpu.ErrLost })
	achieved := store.Achieved{MIG: true, Layout: complete.Instances}
	for _, c := range []struct {
		name         string
		observations []observe.GPU
		a            store.Achieved
		reset        bool // at the last observation
	}{
		{"the first observation finds all instances", []observe.GPU{complete}, achieved, false},
		{"the first observation finds none", []observe.GPU{empty}, achieved, true},
		{"they disappear between two observations", []observe.GPU{complete, empty}, achieved, false},
		{"it was lost and comes back with none", []observe.GPU{complete, lost, empty}, achieved, true},
		{"it is lost", []observe.GPU{complete, lost}, achieved, false},
		{"it was lost and comes back with all", []observe.GPU{complete, lost, complete}, achieved, false},
		{"it was lost, came back, and they are removed later", []observe.GPU{complete, lost, complete, empty}, achieved, false},
		{"it was lost, a change restores it, and they are removed later", []observe.GPU{complete, lost, restored, empty}, achieved, false},
		{"it never had one", []observe.GPU{empty}, store.Achieved{MIG: true}, false},
		{"only some disappear", []observe.GPU{observetest.Device(true, observetest.Instance(19, 0))}, achieved, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s resetDetector
			for i, g := range c.observations {
				if g.Identity.UUID == "" {
					s.noteOne(observetest.One)
					continue
				}
				node := &observe.Node{GPUs: []observe.GPU{g}}
				if last := i == len(c.observations)-1; last && s.wasReset(&c.a, node, observetest.One) != c.reset {
					t.Errorf("wasReset is not %v", c.reset)
				}
				s.note(node)
			}
		})
	}
}
