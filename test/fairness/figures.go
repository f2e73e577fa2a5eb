package fairness

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/quota"
)

// Figures are what one run measured. Errors are percentage points of the busy time.
type Figures struct {
	RMS10, RMS60 float64 // root mean square over leases and windows of 10 s and 60 s
	Worst10      float64 // window and lease
	Bias         float64 // largest over leases, over the whole time
	Busy         float64 // percent of the time
	Gain         float64 // points that a load which cheats has above its share in any window of 10 s
	Longest      time.Duration
	Latency      []Latency // of the requests, by load
	Due          []float64 // percent, by load; negative for what is not a lease
	Shares       []float64 // percent of the busy time, by load
	Of           []float64 // percent of the time, by load
	Freezes      int
	Usage        []quota.Usage
	Status       quota.Status
}

// String returns the figures as a row.
func (f Figures) String() string {
	return fmt.Sprintf(
		"rms10 %5.2f  rms60 %5.2f  worst10 %5.2f  bias %5.2f  gain %5.2f  busy %5.1f %%  longest %5.2fs", f.RMS10, f.RMS60, f.Worst10,
		f.Bias, f.Gain, f.Busy, f.Longest.Seconds(),
	)
}

// Latency is how long requests took, from their arrival to the moment at which the host has the result.
type Latency struct {
	Requests int
	P50, P99 time.Duration
}

// latency sums up the requests of a process.
func (p *process) latency() Latency {
	n := len(p.latencies)
	if n == 0 {
		return Latency{}
	}
	slices.Sort(p.latencies)
	return Latency{Requests: n, P50: p.latencies[n/2], P99: p.latencies[min(n*99/100, n-1)]}
}

// Requests returns the latencies of the loads that have requests.
func (f Figures) Requests() string {
	var out []string
	for _, l := range f.Latency {
		if l.Requests != 0 {
			out = append(out, fmt.Sprintf("%.0f/%.0f ms", l.P50.Seconds()*1000, l.P99.Seconds()*1000))
		}
	}
	return strings.Join(out, ", ")
}
