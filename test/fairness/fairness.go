// Package fairness runs the time scheduler on the engine of the virtual node, in virtual time, and measures what each lease
// gets. The engine shares the GPU equally between all that have work and costs nothing for a switch, so the figures are the
// errors of the scheduler, not those of hardware.
package fairness

import (
	"cmp"
	"math"
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/quota"
)

// Scenario is a GPU with leases.
type Scenario struct {
	Name   string
	Loads  []Load
	Config quota.Config
	// Bound: every load keeps the GPU busy alone, so the shares of the busy time are compared with the weights. Otherwise the parts
	// of the time are compared with the max-min fair division of what the loads would use alone.
	Bound bool
	// AtLeastShare: no load that is always busy gets less than its share or than side by side, and the GPU idles hardly more than there.
	AtLeastShare bool
	// Cheats: the first load tries to get more than its share. What it gains in any ten seconds is a figure.
	Cheats    bool
	Switching engine.Switching // how processes share the GPU
	Jumps     bool             // the system clock of the host is set now and then
	Late      time.Duration    // on average, the scheduler's loop and a thawed process run this much late: uniform, up to twice that
	Long      time.Duration    // what is measured; 0: Length
	Warm      time.Duration    // what is not; 0: WarmUp
}

// Mode is how the time of the GPU is shared.
type Mode string

// The modes.
const (
	Enforced   Mode = "scheduler"
	SideBySide Mode = "side by side" // nothing is frozen
	DutyCycle  Mode = "duty cycle"   // a slice of share × 1 s for each, one after the other
)

// Variant is how the driver samples.
type Variant struct {
	Name     string
	Sampling engine.Sampling
	NoSeries bool // only the answers by process
	Series   Disturbance
	Rows     Disturbance // the same of the answers by process
}

// WarmUp and Length are the time that is not measured and that is measured.
const (
	WarmUp = 20 * time.Second
	Length = 240 * time.Second
)

func withDefaults(sc Scenario) Scenario {
	sc.Long, sc.Warm = cmp.Or(sc.Long, Length), cmp.Or(sc.Warm, WarmUp)
	return sc
}

// Run runs a scenario.
func Run(sc Scenario, v Variant, mode Mode, seed uint64) Figures {
	sc = withDefaults(sc)
	n := newNode(sc, v, mode, seed)
	defer n.engine.Close()
	n.run(sc.Warm)
	var f Figures
	var g gain
	first := n.busy()
	for _, p := range n.processes {
		p.latencies = nil
	}
	last10, last60 := first, first
	sum10, sum60, n10, n60 := 0.0, 0.0, 0, 0
	for at := 10 * time.Second; at <= sc.Long; at += 10 * time.Second {
		if sc.Cheats {
			g.run(n, sc.Warm+at)
		}
		n.run(sc.Warm + at)
		now := n.busy()
		if want, ok := sc.due(sc.Warm+at-10*time.Second, sc.Warm+at); ok {
			for _, e := range sc.errors(last10, now, want, 10*time.Second) {
				sum10 += e * e
				n10++
				f.Worst10 = max(f.Worst10, math.Abs(e))
			}
		}
		last10 = now
		if at%time.Minute == 0 {
			if want, ok := sc.due(sc.Warm+at-time.Minute, sc.Warm+at); ok {
				for _, e := range sc.errors(last60, now, want, time.Minute) {
					sum60 += e * e
					n60++
				}
			}
			last60 = now
		}
	}
	f.RMS10, f.RMS60 = math.Sqrt(sum10/float64(max(n10, 1))), math.Sqrt(sum60/float64(max(n60, 1)))
	var total, all time.Duration
	for i := range first {
		all += last10[i] - first[i]
		if !sc.Loads[i].Outside {
			total += last10[i] - first[i]
		}
	}
	want, stable := sc.due(sc.Warm, sc.Warm+sc.Long)
	f.Due = want
	for i := range first {
		part := last10[i] - first[i]
		f.Shares = append(f.Shares, 100*float64(part)/float64(max(total, 1)))
		f.Of = append(f.Of, 100*float64(part)/float64(sc.Long))
		if stable && !sc.Loads[i].Outside {
			got := f.Shares[i]
			if !sc.Bound {
				got = f.Of[i]
			}
			f.Bias = max(f.Bias, math.Abs(got-want[i]))
		}
	}
	f.Busy, f.Gain = 100*float64(all)/float64(sc.Long), g.worst
	for _, p := range n.processes {
		f.Longest = max(f.Longest, p.longest)
		f.Latency = append(f.Latency, p.latency())
	}
	f.Freezes = n.freezes
	if n.scheduler != nil {
		f.Usage, f.Status = n.scheduler.Usage(n.now()), n.scheduler.Status()
	}
	return f
}
