package fairness

import (
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
)

// lowLatency are scenarios with leases that have low latency.
func lowLatency() []Scenario {
	fast := func(l Load) Load { l.LowLatency = true; return l }
	kernels := func(share float64, kernel, queue time.Duration) Load {
		return does(share, Program{Kernel: kernel, Queue: queue})
	}
	whole := engine.Switching{Slice: 2 * ms, Whole: true}
	many := func(rate float64) Program { return Program{Work: 10 * ms, Rate: rate} }
	return []Scenario{
		{Name: "low latency: 20/80, inference and training", Loads: []Load{fast(inference(20)), training(80)}},
		{
			Name:      "low latency: 20/80, requests at random and training, whole kernels of 5 ms",
			Loads:     []Load{fast(does(20, atRandom)), training(80)},
			Switching: whole,
		},
		{
			Name:      "low latency: 20/80, requests at random and training, whole kernels of 20 ms",
			Loads:     []Load{fast(does(20, atRandom)), kernels(80, 20*ms, 60*ms)},
			Switching: whole,
		},
		{
			Name:      "low latency: 20/80, requests at random and training, whole kernels of 200 ms",
			Loads:     []Load{fast(does(20, atRandom)), kernels(80, 200*ms, 400*ms)},
			Switching: whole,
		},
		{
			Name:      "low latency: 20/80, requests at random and training, kernels of 200 ms that are interrupted",
			Loads:     []Load{fast(does(20, atRandom)), kernels(80, 200*ms, 400*ms)},
			Switching: engine.Switching{Slice: 2 * ms},
		},
		{
			Name:  "low latency: 20/40/40, requests at random and two trainings",
			Loads: []Load{fast(does(20, atRandom)), training(40), training(40)},
		},
		{
			Name:  "low latency: 40/30/30, 30 requests/s of 10 ms and two trainings",
			Loads: []Load{fast(does(40, many(30))), training(30), training(30)},
		},
		{Name: "low latency: 60/40, 50 requests/s of 10 ms and training", Loads: []Load{fast(does(60, many(50))), training(40)}},
		{
			Name:  "low latency: 60/20/20, 50 requests/s of 10 ms and two trainings",
			Loads: []Load{fast(does(60, many(50))), training(20), training(20)},
		},
		{
			Name:  "low latency: 40/40/20, two services with 20 requests/s of 10 ms and training",
			Loads: []Load{fast(does(40, many(20))), fast(does(40, many(20))), training(20)},
		},
		{Name: "low latency: 20/80, a flood and training", Loads: []Load{fast(does(20, flood)), training(80)}, Warm: after},
	}
}

// ownIdle is the price of services that use half of the GPU.
const ownIdle = "the others wait for the service, and what it leaves idle of the time that it has for itself is lost"

// lowLatencyLimits are what these scenarios keep with every sampler: the greatest figures of three seeds, with a margin. A request waits
// no longer than side by side and 20 ms. What is not in it keeps the target.
var lowLatencyLimits = map[string]Limits{
	"low latency: 20/80, inference and training":                                                  {RMS10: 2, Busy: 98.5, Latency: 20 * ms},
	"low latency: 20/80, requests at random and training, whole kernels of 5 ms":                  {RMS10: 2, Busy: 98.5, Latency: 20 * ms},
	"low latency: 20/80, requests at random and training, whole kernels of 20 ms":                 {RMS10: 2, Busy: 98.5, Latency: 20 * ms},
	"low latency: 20/80, requests at random and training, kernels of 200 ms that are interrupted": {RMS10: 2, Busy: 98.5, Latency: 20 * ms},
	"low latency: 20/80, requests at random and training, whole kernels of 200 ms": {
		RMS10:   12,
		Busy:    83,
		Latency: 20 * ms,
		Reason:  "next to them it starves: it has slices as any other lease, where a series shows that",
	},
	"low latency: 60/40, 50 requests/s of 10 ms and training": {
		RMS10:   8.5,
		Busy:    88,
		Latency: 20 * ms,
		Reason:  ownIdle,
	},
	"low latency: 60/20/20, 50 requests/s of 10 ms and two trainings": {RMS10: 5, Busy: 90, Latency: 20 * ms, Reason: ownIdle},
	"low latency: 40/40/20, two services with 20 requests/s of 10 ms and training": {
		RMS10:   5.5,
		Busy:    92,
		Latency: 20 * ms,
		Reason:  ownIdle,
	},
}
