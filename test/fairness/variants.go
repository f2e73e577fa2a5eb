package fairness

import "github.com/gpushare/gpushare/gpusim/engine"

// Variants are the samplers of the matrix.
func Variants() []Variant {
	return []Variant{
		{Name: "instant, 139 ms, epoch", Sampling: engine.Sampling{Naming: engine.NameInstant, Period: 139 * ms, Jitter: 0.05}},
		{
			Name:     "period, 139 ms, boot",
			Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 139 * ms, Jitter: 0.05, Clock: engine.SinceBoot},
		},
		{Name: "period, 168 ms, epoch", Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 168 * ms, Jitter: 0.05}},
		{
			Name:     "instant, 168 ms, boot, no jitter",
			Sampling: engine.Sampling{Naming: engine.NameInstant, Period: 168 * ms, Clock: engine.SinceBoot},
		},
		{Name: "last, 200 ms, epoch", Sampling: engine.Sampling{Naming: engine.NameLast, Period: 200 * ms, Jitter: 0.05}},
		{
			Name:     "period, 167 ms, zeros",
			Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 167 * ms, Jitter: 0.02, ZeroWhenIdle: true},
		},
		{
			Name:     "no series, period, 139 ms",
			Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 139 * ms, Jitter: 0.05},
			NoSeries: true,
		},
		{
			Name:     "no series, instant, 168 ms",
			Sampling: engine.Sampling{Naming: engine.NameInstant, Period: 168 * ms, Jitter: 0.05},
			NoSeries: true,
		},
		{Name: "period, 97 ms", Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 97 * ms, Jitter: 0.05}},
		{
			Name:     "instant, 155 ms, boot",
			Sampling: engine.Sampling{Naming: engine.NameInstant, Period: 155 * ms, Jitter: 0.05, Clock: engine.SinceBoot},
		},
		{Name: "slow: period, 500 ms", Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 500 * ms, Jitter: 0.05}},
		{Name: "slow: period, 1000 ms", Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 1000 * ms, Jitter: 0.02}},
		{Name: "slow: instant, 1000 ms, zeros", Sampling: engine.Sampling{
			Naming:       engine.NameInstant,
			Period:       1000 * ms,
			Clock:        engine.SinceBoot,
			ZeroWhenIdle: true,
		}},
		{
			Name:     "a series that lags by 3 s, period, 139 ms",
			Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 139 * ms, Jitter: 0.05},
			Series:   Lags,
		},
		{
			Name:     "a series that stops for a minute, period, 139 ms",
			Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 139 * ms, Jitter: 0.05},
			Series:   Stops,
		},
		{
			Name:     "a series that repeats its samples, period, 139 ms",
			Sampling: engine.Sampling{Naming: engine.NamePeriod, Period: 139 * ms, Jitter: 0.05},
			Series:   Repeats,
		},
	}
}

// Slow reports whether the driver samples too seldom to measure what runs after a freeze.
func (v Variant) Slow() bool { return v.Sampling.Period >= 500*ms }

// Disturbance is what is wrong with the series of a driver.
type Disturbance string

// The disturbances.
const (
	Lags    Disturbance = "lags"    // a sample is known 3 s after its period
	Stops   Disturbance = "stops"   // for a minute, a minute after the start, there is no new one
	Repeats Disturbance = "repeats" // each answer has the samples of the last 5 s, whatever is asked for
	// Restarts is a driver that forgets all samples now and then, and Unordered one whose samples are in no order.
	Restarts  Disturbance = "restarts"
	Unordered Disturbance = "unordered"
)

// samplers are the kinds of samplers.
type samplers string

const (
	series     samplers = "series"
	lateSeries samplers = "a series that lags or stops"
	noSeries   samplers = "no series"
	slow       samplers = "slow"
)

func (v Variant) samplers() samplers {
	switch {
	case v.Slow():
		return slow
	case v.NoSeries:
		return noSeries
	case v.Series == Lags, v.Series == Stops:
		return lateSeries
	}
	return series
}
