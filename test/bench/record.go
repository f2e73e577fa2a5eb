package main

import (
	"math"
	"slices"
	"sort"
	"time"
)

// reading is the GPU time of every tenant of a scenario since its start, by the virtual GPU's own count.
type reading struct {
	at   time.Duration // since the start of the measurement
	busy []float64     // seconds, one for each tenant
}

// record is a sequence of readings in ascending order of time.
type record []reading

// at returns the GPU time of every tenant at a time, by linear interpolation between two readings.
func (r record) at(t time.Duration) []float64 {
	i := sort.Search(len(r), func(i int) bool { return r[i].at >= t })
	if i == 0 {
		return r[0].busy
	}
	if i == len(r) {
		return r[i-1].busy
	}
	a, b := r[i-1], r[i]
	part := float64(t-a.at) / float64(b.at-a.at)
	out := make([]float64, len(a.busy))
	for k := range out {
		out[k] = a.busy[k] + part*(b.busy[k]-a.busy[k])
	}
	return out
}

// end is the time of the last reading.
func (r record) end() time.Duration { return r[len(r)-1].at }

// between is the GPU time of every tenant in a window, in seconds.
func (r record) between(from, to time.Duration) []float64 {
	a, b := r.at(from), r.at(to)
	out := make([]float64, len(a))
	for i := range out {
		out[i] = b[i] - a[i]
	}
	return out
}

// shares divides by the sum; nil when nothing was used.
func shares(busy []float64) []float64 {
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

// deviation compares the shares in all windows of one length with the targets. A window begins every second. Both values are
// in points (percent of what was used), and of the tenant that has the largest.
func (r record) deviation(targets []float64, window time.Duration) (rms, worst float64) {
	squares, n := make([]float64, len(targets)), 0
	for from := time.Duration(0); from+window <= r.end(); from += time.Second {
		got := shares(r.between(from, from+window))
		if got == nil {
			continue
		}
		n++
		for i := range targets {
			d := 100 * (got[i] - targets[i])
			squares[i] += d * d
			worst = max(worst, math.Abs(d))
		}
	}
	if n == 0 {
		return math.NaN(), math.NaN()
	}
	return math.Sqrt(slices.Max(squares) / float64(n)), worst
}

// bias is the largest difference between a tenant's share of the whole record and its target, in points.
func (r record) bias(targets []float64) float64 {
	got := shares(r.between(0, r.end()))
	if got == nil {
		return math.NaN()
	}
	worst := 0.0
	for i := range targets {
		worst = max(worst, math.Abs(100*(got[i]-targets[i])))
	}
	return worst
}

// busy is the part of the time in which the GPU ran anything, in percent.
func (r record) busy() float64 {
	return 100 * sum(r.between(0, r.end())) / r.end().Seconds()
}

// longestWait is the longest time in which a tenant used no GPU time, exact to the distance of two readings.
func (r record) longestWait() (longest time.Duration) {
	for i := range r[0].busy {
		since := r[0].at
		for k := 1; k < len(r); k++ {
			if r[k].busy[i] > r[k-1].busy[i] {
				since = r[k].at
				continue
			}
			longest = max(longest, r[k].at-since)
		}
	}
	return longest
}
