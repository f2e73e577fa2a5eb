package fairness

import "time"

// measuredGating has the greatest figures of all Rises with eight seeds, with a margin.
var measuredGating = map[samplers]gatingLimits{
	series:     {Median: 1800 * ms, Nine: 3600 * ms, Worst: 6 * time.Second, Mean: 10, Reason: seldomNamed},
	lateSeries: {Median: 1800 * ms, Nine: 6 * time.Second, Worst: 6 * time.Second, Mean: 10, Reason: seldomNamed},
	noSeries:   {Median: 1800 * ms, Nine: 3600 * ms, Worst: 6 * time.Second, Mean: 10, Reason: seldomNamed},
	slow:       {Median: 8 * time.Second, Nine: time.Minute, Worst: time.Minute, Mean: 20, Reason: fewSamples},
}

const seldomNamed = "half of them are frozen within two seconds: each sample names one process, seven a second, so that two or three seconds " +
	"of a burst are wrong by a quarter of a second of use"
