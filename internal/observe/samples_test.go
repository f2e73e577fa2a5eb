package observe

import (
	"testing"
	"time"

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
	one := uint64(1)
	s.PutLease("ended", "GPU-1", LeaseReading{Memory: &one})
	s.Retain(nil, func(gpu.UUID) bool { return false })
	if s.Overlay(n) != n || s.Lease("ended").Memory != 0 {
		t.Error("readings of ended leases are kept")
	}
}

// The sample of a lease adds up its GPUs. A measurement that failed keeps the last known value, with its time.
func TestSampleOfALease(t *testing.T) {
	s := NewSamples()
	a, b, start := uint64(10), uint64(5), time.Unix(1000, 0)
	s.PutLease("l", "GPU-1", LeaseReading{Memory: &a, At: start, Processes: []int{1, 2}, Stage: "over"})
	s.PutLease("l", "GPU-2", LeaseReading{Memory: &b, At: start, Processes: []int{2, 3}})
	want := LeaseSample{Memory: 15, Processes: 3, Stage: "over"}
	if got := s.Lease("l"); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	s.PutLease("l", "GPU-1", LeaseReading{Failed: true, Stage: "over"})
	want = LeaseSample{Memory: 15, Processes: 3, Stage: "over", LastKnown: start}
	if got := s.Lease("l"); got != want {
		t.Errorf("after a measurement that failed: got %+v, want %+v", got, want)
	}
	s.PutLease("l", "GPU-3", LeaseReading{Failed: true})
	if got := s.Lease("l"); !got.Unknown || got.Memory != 15 {
		t.Errorf("with a GPU that was never measured: got %+v", got)
	}
}
