package quota

import (
	"math"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Busy estimates each lease's part of a GPU's time from summaries of the driver's samples. Drivers add up their samples by
// process: SM is the part of the samples since the last query. The zero value works; it is not safe for concurrent use.
type Busy struct {
	// Period is the time between two samples. 0: samplesPerSecond. What is known of a time is the less certain the longer it is.
	Period    time.Duration
	summaries []summary
}

type summary struct {
	from, to time.Duration
	parts    map[string]float64
}

// keepSummaries is how long summaries are kept.
const keepSummaries = time.Minute

// Add adds the result of one query at to; from is the time of the query before. An empty result counts: no process was busy.
// lease returns the lease of a process, "" when it has none.
func (b *Busy) Add(from, to time.Duration, samples []gpu.UtilSample, lease func(pid int) string) {
	if to <= from {
		return
	}
	a := summary{from: from, to: to, parts: map[string]float64{}}
	sum := 0.0
	for _, x := range samples {
		part := float64(min(max(x.SM, 0), 100)) / 100 // drivers have been observed to report more than 100 for zombies
		a.parts[lease(x.PID)] += part
		sum += part
	}
	for id := range a.parts {
		a.parts[id] /= max(1, sum)
	}
	b.summaries = append(b.summaries, a)
	for len(b.summaries) != 0 && b.summaries[0].to < to-keepSummaries {
		b.summaries = b.summaries[1:]
	}
}

// Last returns the parts of the newest result, by lease.
func (b *Busy) Last() map[string]float64 {
	if len(b.summaries) == 0 {
		return nil
	}
	return b.summaries[len(b.summaries)-1].parts
}

// Shares estimates the parts of the window that ends now. Only the last minute is known.
func (b *Busy) Shares(now, window time.Duration) map[string]Share {
	out := map[string]Share{}
	if window <= 0 {
		return out
	}
	for _, a := range b.summaries {
		over := min(a.to, now) - max(a.from, now-window)
		if over <= 0 {
			continue
		}
		for id, part := range a.parts {
			sh := out[id]
			sh.Part += part * float64(over) / float64(window)
			out[id] = sh
		}
	}
	n := samplesPerSecond * window.Seconds()
	if b.Period > 0 {
		n = min(n, max(1, window.Seconds()/b.Period.Seconds()))
	}
	for id, sh := range out {
		sh.Part = min(1, sh.Part)
		sh.StdErr = math.Sqrt(sh.Part * (1 - sh.Part) / n)
		sh.Samples = int(math.Round(sh.Part * n))
		sh.OfWindow = window
		out[id] = sh
	}
	return out
}

// BusyVariance is the variance of a busy time in seconds², for a part of a length of time.
func BusyVariance(part float64, length time.Duration) float64 {
	return part * (1 - part) * length.Seconds() / samplesPerSecond
}
