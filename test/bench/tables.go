package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/gpushare/gpushare/test/fairness"
)

// cells are all runs of one scenario in virtual time.
type cells struct {
	fairness.Scenario
	sideBySide, dutyCycle []fairness.Figures
	series, none, seldom  []fairness.Figures   // the scheduler: with the series of the GPU, without it, and with rare samples
	means                 [][]fairness.Figures // of each sampler with a series that neither lags nor stops
}

// measure runs a scenario with each sampler.
func (c *cells) measure(seeds uint64) {
	variants := fairness.Variants()
	for seed := uint64(1); seed <= seeds; seed++ {
		c.sideBySide = append(c.sideBySide, fairness.Run(c.Scenario, variants[0], fairness.SideBySide, seed))
		if c.Bound {
			c.dutyCycle = append(c.dutyCycle, fairness.Run(c.Scenario, variants[0], fairness.DutyCycle, seed))
		}
	}
	for _, v := range variants {
		var runs []fairness.Figures
		for seed := uint64(1); seed <= seeds; seed++ {
			runs = append(runs, fairness.Run(c.Scenario, v, fairness.Enforced, seed))
		}
		switch {
		case v.NoSeries:
			c.none = append(c.none, runs...)
		case v.Slow():
			c.seldom = append(c.seldom, runs...)
		default:
			c.series = append(c.series, runs...)
			if v.Series != fairness.Lags && v.Series != fairness.Stops {
				c.means = append(c.means, runs)
			}
		}
	}
}

// tables prints the tables of the documentation that are of virtual time.
func (b *bench) tables(ctx context.Context, out io.Writer) error {
	var all []*cells
	for _, sc := range fairness.Scenarios() {
		all = append(all, &cells{Scenario: sc})
	}
	next := make(chan *cells)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for c := range next {
				c.measure(uint64(b.seeds))
			}
		})
	}
	for _, c := range all {
		if ctx.Err() != nil {
			break
		}
		next <- c
	}
	close(next)
	workers.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the simulation did not end: %w", err)
	}
	boundTable(out, all)
	demandTable(out, all)
	seldomTable(out, all)
	meanTable(out, all)
	return nil
}

func header(out io.Writer, about string, columns ...string) {
	fmt.Fprintf(out, "\n%s\n\n| %s |\n|%s\n", about, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
}

func row(out io.Writer, values ...string) { fmt.Fprintf(out, "| %s |\n", strings.Join(values, " | ")) }

func boundTable(out io.Writer, all []*cells) {
	header(out, "robustness.md, leases that keep the GPU busy:", "load", "side by side", "duty cycle", "scheduler: RMS 10 s", "RMS 60 s",
		"worst 10 s", "GPU busy, %", "without the series: RMS 10 s", "GPU busy, %")
	t := fairness.Target
	for _, c := range all {
		if !c.Bound {
			continue
		}
		row(
			out,
			c.Name,
			extent(c.sideBySide, rms10, 0),
			extent(c.dutyCycle, rms10, 0),
			extent(c.series, rms10, t.RMS10),
			extent(c.series, rms60, t.RMS60),
			extent(c.series, worst10, 0),
			extent(c.series, busy, -t.Busy),
			extent(c.none, rms10, t.RMS10),
			extent(c.none, busy, -t.Busy),
		)
	}
}

func demandTable(out io.Writer, all []*cells) {
	header(
		out,
		"robustness.md, leases that leave the GPU idle at times:",
		"load",
		"side by side: error, p99",
		"scheduler: RMS 10 s",
		"it gets, %",
		"request p50",
		"p99",
		"GPU busy, %",
		"above its share in 10 s",
	)
	for _, c := range all {
		if c.Bound && !c.Cheats || strings.HasPrefix(c.Name, "low latency") {
			continue
		}
		t := c.Target()
		free := slowest(c.sideBySide, busy)
		gain := "-"
		if c.Cheats {
			gain = extent(c.series, func(f fairness.Figures) float64 { return f.Gain }, fairness.GainTarget)
		}
		p50, p99, most := "-", "-", "-"
		if i := c.first(); i >= 0 {
			of := func(f fairness.Figures) float64 { return milliseconds(f.Latency[i].P99) }
			p50 = extent(c.series, func(f fairness.Figures) float64 { return milliseconds(f.Latency[i].P50) }, 0)
			p99 = extent(c.series, of, 0)
			if !c.Demanding(i) {
				p99 = extent(c.series, of, greatest(c.sideBySide, of)+milliseconds(t.Latency))
			}
			most = extent(c.sideBySide, of, 0)
		}
		row(
			out,
			c.Name,
			extent(c.sideBySide, rms10, 0)+", "+most,
			extent(c.series, rms10, t.RMS10),
			extent(c.series, func(f fairness.Figures) float64 { return f.Of[0] }, 0),
			p50,
			p99,
			extent(c.series, busy, -t.Busy*free/100),
			gain,
		)
	}
}

func seldomTable(out io.Writer, all []*cells) {
	header(out, "robustness.md, a driver that samples every 0.5 or 1 s:", "load", "RMS 10 s", "worst 10 s", "GPU busy, %")
	for _, c := range all {
		if c.Bound {
			t := fairness.Target
			row(out, c.Name, extent(c.seldom, rms10, t.RMS10), extent(c.seldom, worst10, 0), extent(c.seldom, busy, -t.Busy))
		}
	}
}

// meanTable has the means of the seeds, the least and the most of all samplers.
func meanTable(out io.Writer, all []*cells) {
	header(out, "timeslice.md, means of the seeds:", "load", "gets, %", "p50, ms", "p99, ms", "side by side, p99, ms", "GPU busy, %")
	for _, c := range all {
		i := c.first()
		if i < 0 || c.Cheats || c.Bound || strings.HasPrefix(c.Name, "low latency") {
			continue
		}
		of := func(value func(fairness.Figures) float64) (low, high float64) {
			low, high = math.Inf(1), math.Inf(-1)
			for _, runs := range c.means {
				x := mean(runs, value)
				low, high = min(low, x), max(high, x)
			}
			return low, high
		}
		whole := func(value func(fairness.Latency) time.Duration) string {
			low, high := of(func(f fairness.Figures) float64 { return milliseconds(value(f.Latency[i])) })
			return between(math.Round(low), math.Round(high))
		}
		p50 := func(l fairness.Latency) time.Duration { return l.P50 }
		p99 := func(l fairness.Latency) time.Duration { return l.P99 }
		free := mean(c.sideBySide, func(f fairness.Figures) float64 { return milliseconds(f.Latency[i].P99) })
		gets := between(of(func(f fairness.Figures) float64 { return f.Of[i] }))
		row(out, c.Name, gets, whole(p50), whole(p99), number(math.Round(free)), between(of(busy)))
	}
}

// first is the first load whose requests are measured; -1: none.
func (c *cells) first() int {
	for i, l := range c.sideBySide[0].Latency {
		if l.Requests > 0 {
			return i
		}
	}
	return -1
}

func rms10(f fairness.Figures) float64   { return f.RMS10 }
func rms60(f fairness.Figures) float64   { return f.RMS60 }
func worst10(f fairness.Figures) float64 { return f.Worst10 }
func busy(f fairness.Figures) float64    { return f.Busy }

func milliseconds(d time.Duration) float64 { return math.Round(1000 * d.Seconds()) }

func mean(runs []fairness.Figures, value func(fairness.Figures) float64) (out float64) {
	for _, f := range runs {
		out += value(f) / float64(len(runs))
	}
	return out
}

func slowest(runs []fairness.Figures, value func(fairness.Figures) float64) float64 {
	out := math.Inf(1)
	for _, f := range runs {
		out = min(out, value(f))
	}
	return out
}

func greatest(runs []fairness.Figures, value func(fairness.Figures) float64) float64 {
	out := math.Inf(-1)
	for _, f := range runs {
		out = max(out, value(f))
	}
	return out
}

// extent is the least and the greatest of a figure, with a mark if a run misses the target: above it, or below one that is negative. 0: no
// target.
func extent(runs []fairness.Figures, value func(fairness.Figures) float64, target float64) string {
	if len(runs) == 0 {
		return "-"
	}
	low, high := slowest(runs, value), greatest(runs, value)
	out := between(low, high)
	if target > 0 && high > target || target < 0 && low < -target {
		out += " !"
	}
	return out
}

func between(low, high float64) string {
	if number(low) == number(high) {
		return number(low)
	}
	return number(low) + "…" + number(high)
}

func number(x float64) string { return fmt.Sprint(math.Round(100*x) / 100) }
