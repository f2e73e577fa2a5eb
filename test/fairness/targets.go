package fairness

import (
	"math"
	"slices"
	"strings"
	"time"
)

// Limits are what the figures of a cell of the matrix must keep: means over the seeds, in points and percent.
type Limits struct {
	RMS10, RMS60, Bias float64
	Busy               float64       // with demands: percent of what it is side by side
	Latency            time.Duration // with demands: p99 of the requests of a lease below its share, longer than side by side
	Median             time.Duration // the same of half of them; 0: not checked
	Gain               float64       // points that a load which cheats has more than its share in any window of 10 s; 0: two
	Reason             string        // why it is not the target; empty for the target
}

// GainTarget is the Gain of the target.
const GainTarget = 2

// Target is what holds for leases that keep the GPU busy.
var Target = Limits{RMS10: 2, RMS60: 1, Bias: 1, Busy: 97}

// exception is a part of the matrix that misses the target.
type exception struct {
	scenario string // a part of the name
	noSeries bool   // only without the series
	variant  string // a part of its name
	Limits
}

// alternation is the RMS in points, over windows of one length at any time, of a lease that has exactly its share, but one
// kernel at a time: in a cycle of kernel/share it runs once. So it is with a scheduler without error that does not interrupt
// kernels.
func alternation(kernel time.Duration, share float64, window time.Duration) float64 {
	k, w := kernel.Seconds(), window.Seconds()
	cycle := k / share
	ran := func(to float64) float64 { return math.Floor(to/cycle)*k + min(math.Mod(to, cycle), k) }
	const phases = 10000
	var squares float64
	for i := range phases {
		at := cycle * float64(i) / phases
		e := (ran(at+w)-ran(at))/w - share
		squares += e * e
	}
	return 100 * math.Sqrt(squares/phases)
}

// with is an error of the loads together with that of the scheduler.
func with(loads, scheduler float64) float64 { return math.Hypot(loads, scheduler) }

// exceptions are computed, or measured with a margin for other seeds.
var exceptions = []exception{
	{
		"training of three processes",
		false,
		"slow",
		Limits{
			RMS10:  7,
			RMS60:  6,
			Bias:   5.5,
			Busy:   97,
			Reason: "150 ms of queued work, and a driver that samples twice or once a second",
		},
	},
	{
		"training and training of eight processes",
		true,
		"",
		Limits{
			RMS10:  3.8,
			RMS60:  3.3,
			Bias:   3.1,
			Busy:   97,
			Reason: "400 ms of queued work next to 50 ms, and no series: it is learned from answers that are wrong by 0.2 s each",
		},
	},
	{
		"eight processes",
		false,
		"slow",
		Limits{
			RMS10:  18,
			RMS60:  12,
			Bias:   9,
			Busy:   97,
			Gain:   15,
			Reason: "400 ms of queued work, and a driver that samples twice or once a second",
		},
	},
	{
		"eight processes",
		true,
		"",
		Limits{
			RMS10:  3.5,
			RMS60:  2.8,
			Bias:   2.4,
			Busy:   97,
			Gain:   6.5,
			Reason: "400 ms of queued work, and no series: it is learned from answers that are wrong by 0.2 s each",
		},
	},
	{
		"eight processes",
		false,
		"",
		Limits{
			RMS10:  2.5,
			RMS60:  1,
			Bias:   1,
			Busy:   97,
			Gain:   5.5,
			Reason: "a slice has 400 ms of queued work after it, so this lease runs once in three seconds",
		},
	},
	{
		"10/90, kernels of 2 s",
		false,
		"slow",
		Limits{
			RMS10:  20,
			RMS60:  11,
			Bias:   9,
			Busy:   97,
			Reason: "a kernel is not interrupted: the smaller lease runs for 2 s in 20 s; and the driver samples twice or once a second",
		},
	},
	{
		"50/50, kernels of 2 s",
		false,
		"slow",
		Limits{
			RMS10:  with(alternation(2*time.Second, 0.5, 10*time.Second), 6),
			RMS60:  7,
			Bias:   6.5,
			Busy:   97,
			Reason: "a kernel is not interrupted: five of them fit in 10 s; and the driver samples twice or once a second",
		},
	},
	{
		"50/50, kernels of 2 s",
		false,
		"lags",
		Limits{
			RMS10:  with(alternation(2*time.Second, 0.5, 10*time.Second), 4),
			RMS60:  2.5,
			Bias:   1,
			Busy:   97,
			Reason: "a kernel is not interrupted: five of them fit in 10 s; and how long one ran is known 3 s later",
		},
	},
	{
		"",
		false,
		"slow",
		Limits{
			RMS10:  6,
			RMS60:  5,
			Bias:   5,
			Busy:   94,
			Reason: "a driver that samples twice or once a second names one process in each sample; of synchronous programs it sees no idle time",
		},
	},
	{
		"whole kernels of 200 ms",
		false,
		"",
		Limits{
			RMS10:  4.5,
			RMS60:  3.5,
			Bias:   3.5,
			Busy:   95.5,
			Reason: "a kernel is not interrupted, so what runs after a freeze is 0 to 200 ms: to learn it leaves the GPU idle",
		},
	},
	{
		"10/90, kernels of 2 s",
		false,
		"",
		Limits{
			RMS10:  with(alternation(2*time.Second, 0.1, 10*time.Second), Target.RMS10),
			RMS60:  3.5,
			Bias:   2.8,
			Busy:   97,
			Reason: "a kernel is not interrupted: the smaller lease runs for 2 s in 20 s. Kernels so long are not measured with waits, so they are charged by a mean",
		},
	},
	{
		"50/50, kernels of 2 s",
		false,
		"",
		Limits{
			RMS10:  with(alternation(2*time.Second, 0.5, 10*time.Second), Target.RMS10),
			RMS60:  1.8,
			Bias:   1.2,
			Busy:   97,
			Reason: "a kernel is not interrupted: five of them fit in 10 s. Kernels so long are not measured with waits, so they are charged by a mean",
		},
	},
	{
		"queues 400/",
		true,
		"",
		Limits{
			RMS10:  3.5,
			RMS60:  2.6,
			Bias:   2.4,
			Busy:   97,
			Reason: "without the series a long backlog is learned from answers that are wrong by 0.2 s each",
		},
	},
	{
		"queues 200/",
		true,
		"",
		Limits{
			RMS10:  2.5,
			RMS60:  2,
			Bias:   2.8,
			Busy:   97,
			Reason: "without the series a long backlog is learned from answers that are wrong by 0.2 s each",
		},
	},
	{
		"",
		true,
		"",
		Limits{
			RMS10:  2.5,
			RMS60:  2,
			Bias:   2,
			Busy:   97,
			Reason: "without the series the backlog is learned from answers that are wrong by 0.2 s each",
		},
	},
}

// Limits returns what the figures of a scenario with a variant must keep.
func (sc Scenario) Limits(v Variant) Limits {
	if sc.Bound {
		if i := sc.boundException(v); i >= 0 {
			return exceptions[i].Limits
		}
		return Target
	}
	if x := sc.lack(v); x != nil {
		return x.Limits
	}
	if l, ok := lowLatencyLimits[sc.Name]; ok {
		return l
	}
	return sc.demandTarget()
}

// boundException is the first of the exceptions that leases which keep the GPU busy have with a variant; -1: there is none.
func (sc Scenario) boundException(v Variant) int {
	return slices.IndexFunc(exceptions, func(x exception) bool {
		return strings.Contains(sc.Name, x.scenario) && strings.Contains(v.Name, x.variant) && (v.NoSeries || !x.noSeries)
	})
}

// lack is the exception that leases which leave the GPU idle at times have with a variant; nil: there is none.
func (sc Scenario) lack(v Variant) *lack {
	for _, list := range [][]lack{lacking, lackingProcesses} {
		for i := range list {
			if x := &list[i]; x.scenario == sc.Name && x.samplers == v.samplers() {
				return x
			}
		}
	}
	return nil
}

// demandTarget is what holds for leases that leave the GPU idle at times.
func (sc Scenario) demandTarget() Limits {
	out := Limits{RMS10: 2, Busy: 97, Latency: 20 * ms}
	trainings := 0
	for i := range sc.Loads {
		if sc.Loads[i].demand(0, Length) == 1 {
			trainings++
		}
	}
	if trainings > 1 {
		out.RMS10 = 3
	}
	return out
}

// Measure runs a scenario with several seeds. The figures are means, Worst10 and Longest are the greatest; Usage and Status
// are of the last run.
func Measure(sc Scenario, v Variant, mode Mode, seeds int) Figures {
	var out Figures
	for seed := range seeds {
		f := Run(sc, v, mode, uint64(seed))
		n := float64(seeds)
		out.RMS10 += f.RMS10 / n
		out.RMS60 += f.RMS60 / n
		out.Bias += f.Bias / n
		out.Busy += f.Busy / n
		out.Gain += f.Gain / n
		out.Worst10 = max(out.Worst10, f.Worst10)
		out.Longest = max(out.Longest, f.Longest)
		out.Freezes += f.Freezes
		out.Usage, out.Status = f.Usage, f.Status
		if out.Latency == nil {
			out.Latency = make([]Latency, len(f.Latency))
		}
		for i, l := range f.Latency {
			o := &out.Latency[i]
			o.Requests += l.Requests
			o.P50 += l.P50 / time.Duration(seeds)
			o.P99 += l.P99 / time.Duration(seeds)
		}
		out.Due = f.Due
		if out.Of == nil {
			out.Of, out.Shares = make([]float64, len(f.Of)), make([]float64, len(f.Of))
		}
		for i := range f.Of {
			out.Of[i] += f.Of[i] / n
			out.Shares[i] += f.Shares[i] / n
		}
	}
	return out
}

// longest is the longest time for which a lease may be frozen.
func (sc Scenario) longest() time.Duration {
	if sc.Config.MaxFrozen != 0 {
		return sc.Config.MaxFrozen
	}
	return 5 * time.Second
}

// Demanding reports whether a load would use more than its share alone.
func (sc *Scenario) Demanding(i int) bool {
	var total float64
	for _, l := range sc.Loads {
		total += l.Share
	}
	return sc.Loads[i].demand(sc.Warm, sc.Warm+Length) > sc.Loads[i].Share/total+0.001
}
