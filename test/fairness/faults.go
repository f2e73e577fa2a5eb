package fairness

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
)

// restarts is after how long a driver that restarts forgets its samples.
const restarts = 37 * time.Second

// faulty are samplers whose answers are wrong in other ways than those of the matrix.
func faulty() []Variant {
	sampling := engine.Sampling{Naming: engine.NamePeriod, Period: 139 * ms, Jitter: 0.05}
	seldom := engine.Sampling{Naming: engine.NamePeriod, Period: 1000 * ms, Jitter: 0.02}
	return []Variant{
		{Name: "a series that restarts", Sampling: sampling, Series: Restarts},
		{Name: "a series in no order", Sampling: sampling, Series: Unordered},
		{Name: "processes that are not named for a minute", Sampling: sampling, Rows: Stops},
		{Name: "processes that are named 3 s later", Sampling: sampling, Rows: Lags},
		{Name: "no series, and processes that are not named for a minute", Sampling: sampling, NoSeries: true, Rows: Stops},
		{Name: "slow: a series that stops for a minute", Sampling: seldom, Series: Stops},
		{Name: "slow: processes that are not named for a minute", Sampling: seldom, Rows: Stops},
		{Name: "nothing for a minute", Sampling: sampling, Series: Stops, Rows: Stops},
	}
}

// of is what an answer by process has of the samples that there are.
func (d Disturbance) of(now time.Duration, rows []engine.Sample) []engine.Sample {
	newest := now
	switch d {
	case Lags:
		newest -= 3 * time.Second
	case Stops:
		if from := time.Minute; now > from && now < 2*from {
			newest = from
		}
	}
	zero := uint64(start.UnixMicro())
	return slices.DeleteFunc(slices.Clone(rows), func(x engine.Sample) bool {
		return time.Duration(int64(x.Time-zero))*time.Microsecond > newest
	})
}
