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

// A reading that repeats the last one is news after a second: then its time is shown. Each value keeps the time at which it
// was read.
func TestTimesOfReadings(t *testing.T) {
	start, busy := time.Unix(1000, 0), 40
	n := &Node{
		Seq:  1,
		GPUs: []GPU{{Snapshot: gpu.Snapshot{Identity: gpu.Identity{UUID: "GPU-1"}}, ReadAt: start, UtilizationReadAt: start}},
	}
	s := NewSamples()
	if s.PutMemory("GPU-1", gpu.Memory{Used: 1}, start) {
		t.Error("memory without processes is kept")
	}
	s.Put("GPU-1", GPUSample{
		Node:              1,
		Memory:            gpu.Memory{Used: 7},
		Utilization:       &busy,
		ReadAt:            start.Add(time.Second),
		UtilizationReadAt: start.Add(time.Second),
	})
	for _, c := range []struct {
		used  uint64
		after time.Duration
		news  bool
	}{{7, 1500 * time.Millisecond, false}, {7, 2 * time.Second, true}, {8, 2100 * time.Millisecond, true}, {8, 3 * time.Second, false}} {
		if got := s.PutMemory("GPU-1", gpu.Memory{Used: c.used}, start.Add(c.after)); got != c.news {
			t.Errorf("%d bytes after %s: news %v, want %v", c.used, c.after, got, c.news)
		}
	}
	g := s.Overlay(n).GPUs[0]
	if g.Memory.Used != 8 || !g.ReadAt.Equal(start.Add(2100*time.Millisecond)) || *g.Utilization != 40 ||
		!g.UtilizationReadAt.Equal(start.Add(time.Second)) {
		t.Errorf("got %+v", g)
	}
	if s.PutUtilization("GPU-2", 9, start) {
		t.Error("the utilization of a GPU without a sample is kept")
	}
	for _, c := range []struct {
		percent int
		after   time.Duration
		news    bool
	}{{40, 1500 * time.Millisecond, false}, {90, 1600 * time.Millisecond, true}, {90, 2 * time.Second, false}, {90, 2600 * time.Millisecond, true}} {
		if got := s.PutUtilization("GPU-1", c.percent, start.Add(c.after)); got != c.news {
			t.Errorf("%d %% after %s: news %v, want %v", c.percent, c.after, got, c.news)
		}
	}
	if g = s.Overlay(n).GPUs[0]; *g.Utilization != 90 || !g.UtilizationReadAt.Equal(start.Add(2600*time.Millisecond)) || busy != 40 {
		t.Errorf("with a newer utilization: %+v", g)
	}
	n.GPUs[0].UtilizationReadAt = start.Add(time.Minute)
	if g = s.Overlay(n).GPUs[0]; g.Utilization != nil || !g.UtilizationReadAt.Equal(start.Add(time.Minute)) {
		t.Errorf("an older utilization replaces a newer one: %+v", g)
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
	s.PutLease(
		"l",
		"GPU-1",
		LeaseReading{Failed: true, Processes: []int{1}, Stage: "over"},
	) // Process 2 has ended, the memory is not reported.
	want.Processes = 3
	if got := s.Lease("l"); got != want {
		t.Errorf("with processes whose memory was measured before: got %+v, want %+v", got, want)
	}
	s.PutLease("l", "GPU-3", LeaseReading{Failed: true})
	if got := s.Lease("l"); !got.Unknown || got.Memory != 15 {
		t.Errorf("with a GPU that was never measured: got %+v", got)
	}
}

// A driver may not report the memory of processes. What was measured before one came is not what it uses, and least of all nothing.
func TestMemoryOfAProcessThatCameSinceIsUnknown(t *testing.T) {
	nothing, some, start := uint64(0), uint64(7), time.Unix(1000, 0)
	for name, c := range map[string]struct {
		before, now LeaseReading
		want        LeaseSample
	}{
		"it came": {
			LeaseReading{Memory: &nothing, At: start, Processes: []int{}},
			LeaseReading{Failed: true, At: start.Add(time.Second), Processes: []int{1}},
			LeaseSample{Unknown: true, Processes: 1},
		},
		"another one came": {
			LeaseReading{Memory: &some, At: start, Processes: []int{1}},
			LeaseReading{Failed: true, At: start.Add(time.Second), Processes: []int{1, 2}},
			LeaseSample{Unknown: true, Processes: 2},
		},
		"it was measured": {
			LeaseReading{Memory: &some, At: start, Processes: []int{1, 2}},
			LeaseReading{Failed: true, At: start.Add(time.Second), Processes: []int{1}},
			LeaseSample{Memory: 7, LastKnown: start, Processes: 1},
		},
		"nothing was read": {
			LeaseReading{Memory: &some, At: start, Processes: []int{1, 2}},
			LeaseReading{Failed: true},
			LeaseSample{Memory: 7, LastKnown: start, Processes: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSamples()
			s.PutLease("l", "GPU-1", c.before)
			for range 2 { // It stays so.
				s.PutLease("l", "GPU-1", c.now)
				if got := s.Lease("l"); got != c.want {
					t.Errorf("got %+v, want %+v", got, c.want)
				}
			}
		})
	}
}
