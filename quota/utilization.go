package quota

import (
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Period is one of the driver's utilisation samples of a whole GPU: the part of the time since the sample before it in which
// the GPU was busy. An idle GPU has no samples.
type Period struct {
	End  time.Duration // on the scheduler's clock
	Busy float64       // 0…1
}

// Utilization is what the driver sampled of one GPU: the periods that end after From, up to UpTo, ascending. A time without
// a period is idle. A time that no Utilization covers is unknown, for example after a jump of the clock.
type Utilization struct {
	GPU     gpu.UUID // may be empty if all members use all GPUs
	From    time.Duration
	UpTo    time.Duration // when the samples were read
	Periods []Period
}

// ObserveUtilization adds the utilisation samples since the last call; once a second and GPU is enough. Without the series
// of samples from the driver, do not call it, and call ObserveProcesses.
func (s *Scheduler) ObserveUtilization(now time.Duration, u Utilization) {}

// ObserveProcesses adds what the driver attributes to the processes of each lease: the part of the time between from and to
// in which each was busy, 0…1, together at most 1. It is needed with and without the series of the whole GPU: it shows that
// an idle lease has work again. A lease that is missing was not busy.
func (s *Scheduler) ObserveProcesses(now, from, to time.Duration, busy map[string]float64) {}
