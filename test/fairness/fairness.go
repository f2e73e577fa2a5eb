// Package fairness runs the time scheduler on the engine of the virtual node, in virtual time, and measures what each lease
// gets. The engine shares the GPU equally between all that have work and costs nothing for a switch, so the figures are the
// errors of the scheduler, not those of hardware.
package fairness

import (
	"fmt"
	"math"
	"time"

	"github.com/gpushare/gpushare/gpusim/engine"
	"github.com/gpushare/gpushare/quota"
)

// Load is what the process of one lease does.
type Load struct {
	Share  float64
	Queue  time.Duration // of work that is always queued while it runs; 0: it waits for each Work
	Kernel time.Duration // of the queue; 0: 5 ms, or the queue if that is shorter
	Jitter float64       // of the queue, uniform: a new length for every slice
	Work   time.Duration // without a queue: on the GPU, then
	Think  time.Duration // on the host
	// From and Until are when it exists; 0: from the start, to the end.
	From, Until time.Duration
	// On and Off alternate: it launches nothing while off. 0: always on.
	On, Off  time.Duration
	Priority quota.Priority
	Cap      float64 // 0: none
	Outside  bool    // not a lease: it runs at any time
}

// Scenario is a GPU with leases.
type Scenario struct {
	Name   string
	Loads  []Load
	Config quota.Config
	// Bound: every load keeps the GPU busy alone, so the shares of the busy time are compared with the weights.
	Bound bool
	Jumps bool          // the system clock of the host is set now and then
	Late  time.Duration // on average, the scheduler's loop and a thawed process run this much late: uniform, up to twice that
	Long  time.Duration // what is measured; 0: Length
	Warm  time.Duration // what is not; 0: WarmUp
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
}

// WarmUp and Length are the time that is not measured and that is measured.
const (
	WarmUp = 20 * time.Second
	Length = 240 * time.Second
)

// Figures are what one run measured. Errors are percentage points of the busy time.
type Figures struct {
	RMS10, RMS60 float64 // root mean square over leases and windows of 10 s and 60 s
	Worst10      float64 // window and lease
	Bias         float64 // largest over leases, over the whole time
	Busy         float64 // percent of the time
	Longest      time.Duration
	Shares       []float64 // percent of the busy time, by load
	Of           []float64 // percent of the time, by load
	Freezes      int
	Usage        []quota.Usage
	Status       quota.Status
}

// String returns the figures as a row.
func (f Figures) String() string {
	return fmt.Sprintf(
		"rms10 %5.2f  rms60 %5.2f  worst10 %5.2f  bias %5.2f  busy %5.1f %%  longest %5.2fs", f.RMS10, f.RMS60, f.Worst10, f.Bias,
		f.Busy, f.Longest.Seconds(),
	)
}

// Run runs a scenario.
func Run(sc Scenario, v Variant, mode Mode, seed uint64) Figures {
	if sc.Long == 0 {
		sc.Long = Length
	}
	if sc.Warm == 0 {
		sc.Warm = WarmUp
	}
	n := newNode(sc, v, mode, seed)
	defer n.engine.Close()
	n.run(sc.Warm)
	var f Figures
	first := n.busy()
	last10, last60 := first, first
	sum10, sum60, n10, n60 := 0.0, 0.0, 0, 0
	for at := 10 * time.Second; at <= sc.Long; at += 10 * time.Second {
		n.run(sc.Warm + at)
		now := n.busy()
		if want, ok := sc.entitled(sc.Warm+at-10*time.Second, sc.Warm+at); ok {
			for i, e := range errors(last10, now, want) {
				sum10 += e * e
				n10++
				f.Worst10 = max(f.Worst10, math.Abs(e))
				_ = i
			}
		}
		last10 = now
		if at%time.Minute == 0 {
			if want, ok := sc.entitled(sc.Warm+at-time.Minute, sc.Warm+at); ok {
				for _, e := range errors(last60, now, want) {
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
	want, stable := sc.entitled(sc.Warm, sc.Warm+sc.Long)
	for i := range first {
		part := last10[i] - first[i]
		f.Shares = append(f.Shares, 100*float64(part)/float64(max(total, 1)))
		f.Of = append(f.Of, 100*float64(part)/float64(sc.Long))
		if stable && !sc.Loads[i].Outside {
			f.Bias = max(f.Bias, math.Abs(f.Shares[i]-want[i]))
		}
	}
	f.Busy = 100 * float64(all) / float64(sc.Long)
	for _, p := range n.processes {
		f.Longest = max(f.Longest, p.longest)
	}
	f.Freezes = n.freezes
	if n.scheduler != nil {
		f.Usage, f.Status = n.scheduler.Usage(n.now()), n.scheduler.Status()
	}
	return f
}

// entitled is the percentage of the busy time that each load should have; not ok while loads come and go, and up to WarmUp
// after that.
func (sc *Scenario) entitled(from, to time.Duration) ([]float64, bool) {
	out := make([]float64, len(sc.Loads))
	var total float64
	for i, l := range sc.Loads {
		if l.Outside {
			out[i] = -1
			continue
		}
		if l.From > 0 && to > l.From && from < l.From+WarmUp || l.Until > 0 && to > l.Until && from < l.Until+WarmUp {
			return nil, false
		}
		if from >= l.From && (l.Until == 0 || to <= l.Until) {
			out[i] = l.Share
			total += l.Share
		}
	}
	for i := range out {
		if out[i] >= 0 {
			out[i] *= 100 / total
		}
	}
	return out, true
}

// errors are the differences in points between the shares of the busy time and those that are due.
func errors(before, now []time.Duration, want []float64) []float64 {
	var total time.Duration
	for i := range now {
		if want[i] >= 0 {
			total += now[i] - before[i]
		}
	}
	var out []float64
	for i := range now {
		if want[i] > 0 {
			out = append(out, 100*float64(now[i]-before[i])/float64(max(total, 1))-want[i])
		}
	}
	return out
}
