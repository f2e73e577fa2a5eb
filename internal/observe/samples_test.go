package observe

import (
	"testing"

	"github.com/gpushare/gpushare/gpu"
)

// Fast readings replace values of an observation only when they are not older.
func TestSamplesOverAnObservation(t *testing.T) {
	n := &Node{Seq: 5, GPUs: []GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-1"}, Memory: gpu.Memory{Used: 1}}}}}
	s := NewSamples()
	if s.Overlay(n) != n {
		t.Error("without readings the observation differs")
	}
	for node, want := range map[uint64]uint64{4: 1, 5: 7, 6: 7} {
		s.Put("GPU-1", GPUSample{Node: node, Memory: gpu.Memory{Used: 7}})
		if got := s.Overlay(n).GPUs[0].Memory.Used; got != want {
			t.Errorf("a reading after observation %d over observation 5 shows %d, want %d", node, got, want)
		}
	}
	if n.GPUs[0].Memory.Used != 1 {
		t.Error("the observation itself was changed")
	}
	s.PutLease("ended", LeaseSample{Memory: 1})
	s.Retain(nil, func(gpu.UUID) bool { return false })
	if s.Overlay(n) != n || s.Lease("ended").Memory != 0 {
		t.Error("readings of ended leases are kept")
	}
}
