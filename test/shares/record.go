// Package shares compares the GPU time of tenants, read over a time, with the shares that they should have. It reads nothing
// itself.
package shares

import (
	"math"
	"sort"
	"time"
)

// Reading is the GPU time of every tenant of a scenario since its start, by the virtual GPU's own count.
type Reading struct {
	At   time.Duration // since the start of the measurement
	Busy []float64     // seconds, one for each tenant
}

// Record is a sequence of readings in ascending order of time.
type Record []Reading

// at returns the GPU time of every tenant at a time, by linear interpolation between two readings.
func (r Record) at(t time.Duration) []float64 {
	i := sort.Search(len(r), func(i int) bool { return r[i].At >= t })
	if i == 0 {
		return r[0].Busy
	}
	if i == len(r) {
		return r[i-1].Busy
	}
	a, b := r[i-1], r[i]
	part := float64(t-a.At) / float64(b.At-a.At)
	out := make([]float64, len(a.Busy))
	for k := range out {
		out[k] = a.Busy[k] + part*(b.Busy[k]-a.Busy[k])
	}
	return out
}

// End is the time of the last reading.
func (r Record) End() time.Duration { return r[len(r)-1].At }

// Between is the GPU time of every tenant in a window, in seconds.
func (r Record) Between(from, to time.Duration) []float64 {
	a, b := r.at(from), r.at(to)
	out := make([]float64, len(a))
	for i := range out {
		out[i] = b[i] - a[i]
	}
	return out
}

// partOf divides by the sum; nil when nothing was used.
func partOf(busy []float64) []float64 {
	total := sum(busy)
	if total <= 0 {
		return nil
	}
	out := make([]float64, len(busy))
	for i := range busy {
		out[i] = busy[i] / total
	}
	return out
}

func sum(v []float64) (total float64) {
	for _, x := range v {
		total += x
	}
	return total
}

// Deviation compares the shares in all windows of one length with the targets. A window begins every second. Both values are
// in points (percent of what was used): rms over all tenants and windows, worst of them all. They are no numbers when the record
// is shorter than a window.
func (r Record) Deviation(targets []float64, window time.Duration) (rms, worst float64) {
	squares, n := 0.0, 0
	for from := time.Duration(0); from+window <= r.End(); from += time.Second {
		got := partOf(r.Between(from, from+window))
		if got == nil {
			continue
		}
		for i := range targets {
			d := 100 * (got[i] - targets[i])
			squares += d * d
			worst = max(worst, math.Abs(d))
			n++
		}
	}
	if n == 0 {
		return math.NaN(), math.NaN()
	}
	return math.Sqrt(squares / float64(n)), worst
}

// Bias is the largest difference between a tenant's share of the whole record and its target, in points.
func (r Record) Bias(targets []float64) float64 {
	got := partOf(r.Between(0, r.End()))
	if got == nil {
		return math.NaN()
	}
	worst := 0.0
	for i := range targets {
		worst = max(worst, math.Abs(100*(got[i]-targets[i])))
	}
	return worst
}

// Busy is the part of the time in which the GPU ran anything, in percent.
func (r Record) Busy() float64 {
	return 100 * sum(r.Between(0, r.End())) / r.End().Seconds()
}

// LongestWait is the longest time in which a tenant used no GPU time, exact to the distance of two readings.
func (r Record) LongestWait() (longest time.Duration) {
	for i := range r[0].Busy {
		since := r[0].At
		for k := 1; k < len(r); k++ {
			if r[k].Busy[i] > r[k-1].Busy[i] {
				since = r[k].At
				continue
			}
			longest = max(longest, r[k].At-since)
		}
	}
	return longest
}
