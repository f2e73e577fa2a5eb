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
