// Package readings evaluates what a driver reported about one GPU while the hardware test knew what ran on it. It reads nothing
// itself.
package readings

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpushare/gpushare/gpu"
)

// Reading is one reading of a GPU, with the host's two clocks in µs.
type Reading struct {
	Since1970   uint64             `json:"since_1970"` // since 1970
	Boot        uint64             `json:"boot"`       // since the boot of the host
	Used        uint64             `json:"used,omitempty"`
	Utilization *int               `json:"utilization,omitempty"`
	Processes   []gpu.UtilSample   `json:"processes,omitempty"`
	Series      []gpu.SeriesSample `json:"series,omitempty"`
	SeriesError string             `json:"series_error,omitempty"`
}

// Clock is the origin of a driver's times.
type Clock string

// The clocks.
const (
	Epoch Clock = "since 1970"
	Boot  Clock = "since the boot of the host"
)

// Of returns the time of a reading on a clock.
func (c Clock) Of(r Reading) uint64 {
	if c == Boot {
		return r.Boot
	}
	return r.Since1970
}

// FindClock compares the newest sample of each reading with the host's clocks. lag is the median age of a sample when it was
// first read, in µs. It fails without samples, or if they are near neither clock.
func FindClock(list []Reading) (clock Clock, lag int64, err error) {
	var since1970, boot []int64
	for _, r := range list {
		newest := uint64(0)
		for _, s := range r.Series {
			newest = max(newest, s.Time)
		}
		for _, s := range r.Processes {
			newest = max(newest, s.Time)
		}
		if newest == 0 {
			continue
		}
		since1970, boot = append(since1970, int64(r.Since1970)-int64(newest)), append(boot, int64(r.Boot)-int64(newest))
	}
	if len(since1970) == 0 {
		return "", 0, fmt.Errorf("the driver reported no sample")
	}
	w, b := median(since1970), median(boot)
	clock, lag = Epoch, w
	if abs(b) < abs(w) {
		clock, lag = Boot, b
	}
	if abs(lag) > 5_000_000 {
		return "", lag, fmt.Errorf("the newest sample is %d µs from the clock since 1970 and %d µs from that since the boot", w, b)
	}
	return clock, lag, nil
}

func abs(v int64) int64 { return max(v, -v) }

func median[T int | int64 | uint64](v []T) T {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// Gaps are the distances between distinct times in µs.
type Gaps struct{ Median, Shortest, Longest uint64 }

// FindGaps returns the distances of distinct sample times between from and to; ok only with enough of them.
func FindGaps(times []uint64, from, to uint64) (g Gaps, ok bool) {
	times = slices.Clone(times)
	slices.Sort(times)
	times = slices.Compact(times)
	times = slices.DeleteFunc(times, func(t uint64) bool { return t < from || t > to })
	var gaps []uint64
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, times[i]-times[i-1])
	}
	if len(gaps) < 5 {
		return g, false
	}
	return Gaps{median(gaps), slices.Min(gaps), slices.Max(gaps)}, true
}

// Phase is a time in which only one process could run on the GPU, on the driver's clock in µs.
type Phase struct {
	PID      int
	From, To uint64
}

// Naming is what the samples of processes say about which process they name.
type Naming struct {
	Mixed    int     // samples with work of more than one process in their period, taken while one ran
	Instant  int     // of these: they name the process that ran when the sample was taken
	Expected float64 // how many of these would, if a sample named one of those that ran in the period, by their work
	Named    int     // samples of a period with work at whose end nothing ran
}

// FindNaming compares samples with what ran. A sample counts only if its time is at least margin from a change, because the
// times of changes are known no better.
func FindNaming(samples []gpu.UtilSample, phases []Phase, period, margin uint64) (n Naming) {
	seen := map[uint64]bool{}
	for _, s := range samples {
		if s.SM == 0 || seen[s.Time] || s.Time < period {
			continue
		}
		seen[s.Time] = true
		parts, on, sure := during(phases, s.Time, period, margin)
		switch {
		case on == 0 && sure && len(parts) > 0:
			n.Named++
		case on != 0 && sure && len(parts) > 1 && parts[on] < 0.9:
			n.Mixed++
			n.Expected += parts[on]
			if s.PID == on {
				n.Instant++
			}
		}
	}
	return n
}

// during returns the parts of the work in the period before a time by process, and which process ran at its end (0: none). sure
// is false near a change.
func during(phases []Phase, at, period, margin uint64) (parts map[int]float64, on int, sure bool) {
	work, total := map[int]float64{}, 0.0
	sure = true
	for _, p := range phases {
		if from, to := max(p.From, at-period), min(p.To, at); from < to {
			work[p.PID] += float64(to - from)
			total += float64(to - from)
		}
		if near(at, p.From, margin) || near(at, p.To, margin) {
			sure = false
		}
		if at >= p.From && at < p.To {
			on = p.PID
		}
	}
	for pid := range work {
		work[pid] /= total
	}
	return work, on, sure
}

func near(a, b, margin uint64) bool { return a+margin >= b && b+margin >= a }

// String is the conclusion with its figures.
func (n Naming) String() string {
	if n.Mixed < 12 {
		return fmt.Sprintf("undecided: only %d samples had work of several processes in their period", n.Mixed)
	}
	got, want := float64(n.Instant)/float64(n.Mixed), n.Expected/float64(n.Mixed)
	sigma := math.Sqrt(want * (1 - want) / float64(n.Mixed))
	verdict := "undecided"
	switch {
	case got >= 0.95 && want < 0.85 && n.Named == 0:
		verdict = "the process that runs when the sample is taken"
	case got >= 0.95 && want < 0.85:
		verdict = "the process that ran last in the period"
	case math.Abs(got-want) <= 2.5*sigma:
		verdict = "one of the processes that ran in the period"
	}
	return fmt.Sprintf(
		"%s: of %d samples with work of several processes, %.0f %% name the one that ran at their time; %.0f ± %.0f %% would, if a sample named any that ran. "+
			"%d samples are of a time at which nothing ran",
		verdict,
		n.Mixed,
		100*got,
		100*want,
		100*sigma,
		n.Named,
	)
}

// Full is the 90th percentile of the percentages while the GPU was busy without a break.
func Full(series []gpu.SeriesSample, from, to uint64) (percent int, ok bool) {
	var all []int
	for _, s := range series {
		if s.Time >= from && s.Time <= to {
			all = append(all, s.Percent)
		}
	}
	if len(all) < 5 {
		return 0, false
	}
	slices.Sort(all)
	return all[len(all)*9/10], true
}

// Released returns how long after a time, in µs of the clock since boot, the GPU's used memory had fallen to a number of bytes;
// not ok if it did not.
func Released(list []Reading, after, to uint64) (micros uint64, ok bool) {
	for _, r := range list {
		if r.Boot >= after && r.Used <= to {
			return r.Boot - after, true
		}
	}
	return 0, false
}

// BusyAfter returns how long after a time, in µs of the clock since boot, the driver still reported utilisation.
func BusyAfter(list []Reading, after uint64) (micros uint64) {
	for _, r := range list {
		if r.Boot >= after && r.Utilization != nil && *r.Utilization > 0 {
			micros = r.Boot - after
		}
	}
	return micros
}

// Growth is how a program filled memory.
type Growth struct {
	Most uint64  // bytes more than before it
	Rate float64 // bytes a second, between a tenth and nine tenths of Most
}

// FindGrowth compares the GPU's used memory with that before; not ok if it did not grow.
func FindGrowth(list []Reading, before uint64) (g Growth, ok bool) {
	for _, r := range list {
		if r.Used > before {
			g.Most = max(g.Most, r.Used-before)
		}
	}
	var from, to *Reading
	for i := range list {
		r := &list[i]
		switch {
		case from == nil && r.Used >= before+g.Most/10:
			from = r
		case from != nil && to == nil && r.Used >= before+g.Most*9/10:
			to = r
		}
	}
	if g.Most < 1<<20 || from == nil || to == nil {
		return g, false
	}
	g.Rate = float64(to.Used-from.Used) / (float64(to.Boot-from.Boot) / 1e6)
	return g, true
}
