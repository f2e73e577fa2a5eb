package engine

import (
	"fmt"
	"math"
	"time"
)

// The rings of the driver. Utilisation by process has 72 rows over ten seconds (NVIDIA's open kernel modules,
// ctrl2080perf.h); SamplePeriod follows from that. Clients found 100 samples of the whole GPU, about 6 a second (gonvml,
// AverageGPUUtilization).
const (
	RingSize     = 72
	SeriesSize   = 100
	SamplePeriod = 10 * time.Second / RingSize
)

// Naming says which process a row of the utilisation by process names. The header of the driver (ctrl2080perf.h,
// 595.45.04) says that a row has the busy percentage of the period and the process that was active when the sample was
// taken, which can be read in each of these ways.
type Naming string

// The ways to name a process.
const (
	NamePeriod  Naming = "period"  // one of those that ran in the period, with a probability equal to its part of the work
	NameInstant Naming = "instant" // one of those that run when the period ends, by their rates; no row when nothing runs
	NameLast    Naming = "last"    // one of those that ran last in the period, by their rates
)

// SampleClock is the zero of the samples' times. Both were seen: since 1970 in nvtop#110, since boot on a DGX Spark
// (gpu-metrics-agent#37).
type SampleClock string

// The clocks of samples.
const (
	SinceEpoch SampleClock = "epoch" // 1970
	SinceBoot  SampleClock = "boot"
)

// The range of the period of the sampler. In nvml.h (nvmlUtilization_t) it is 1/6 s to 1 s by product; 72 samples in ten
// seconds are shorter.
const (
	minPeriod = 10 * time.Millisecond
	maxPeriod = 2 * time.Second
)

// Sampling says how the driver samples one engine. The zero value names by period, every SamplePeriod, on the clock since
// 1970.
type Sampling struct {
	Naming Naming        // empty: NamePeriod
	Period time.Duration // of one sample, 10 ms to 2 s; 0: SamplePeriod. 167 (nvtop#110), 168 and 200 ms were seen
	// Jitter is the part of the period by which its length varies, uniformly in both directions: 0 to 0.5.
	Jitter float64
	Clock  SampleClock // empty: SinceEpoch
	// Uptime is the time since boot when the engine is created; used with SinceBoot.
	Uptime time.Duration
	// Seed makes every random choice: which process a row names, the lengths of the periods, and when the first one ends.
	// With 0 the first period is a whole one.
	Seed uint64
	// ZeroWhenIdle: a period in which nothing ran has a sample of 0 % in the series. Otherwise it has none.
	ZeroWhenIdle bool
}

// Validate returns what is out of range.
func (s Sampling) Validate() error {
	switch s.Naming {
	case "", NamePeriod, NameInstant, NameLast:
	default:
		return fmt.Errorf("naming must be %s, %s or %s, not %q", NamePeriod, NameInstant, NameLast, s.Naming)
	}
	switch s.Clock {
	case "", SinceEpoch, SinceBoot:
	default:
		return fmt.Errorf("clock must be %s or %s, not %q", SinceEpoch, SinceBoot, s.Clock)
	}
	if s.Period != 0 && (s.Period < minPeriod || s.Period > maxPeriod) {
		return fmt.Errorf("period must be %v to %v, not %v", minPeriod, maxPeriod, s.Period)
	}
	if s.Jitter < 0 || s.Jitter > 0.5 || math.IsNaN(s.Jitter) {
		return fmt.Errorf("jitter must be 0 to 0.5 of the period, not %v", s.Jitter)
	}
	if s.Uptime < 0 {
		return fmt.Errorf("uptime must be at least 0, not %v", s.Uptime)
	}
	return nil
}

// withDefaults fills the empty fields.
func (s Sampling) withDefaults() Sampling {
	if s.Naming == "" {
		s.Naming = NamePeriod
	}
	if s.Period == 0 {
		s.Period = SamplePeriod
	}
	if s.Clock == "" {
		s.Clock = SinceEpoch
	}
	return s
}
