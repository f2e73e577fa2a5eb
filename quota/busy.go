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

// PartsOf is what the samples of one query say of each lease: the part of the time for which it was busy, 0…1. lease returns the lease of
// a process, "" when it has none.
func PartsOf(samples []gpu.UtilSample, lease func(pid int) string) map[string]float64 {
	parts, sum := map[string]float64{}, 0.0
	for _, x := range samples {
		part := float64(min(max(x.SM, 0), 100)) / 100 // drivers have been observed to report more than 100 for zombies
		parts[lease(x.PID)] += part
		sum += part
	}
	for id := range parts {
		parts[id] /= max(1, sum)
	}
	return parts
}

// Add adds the result of one query at to; from is the time of the query before. An empty result counts: no process was busy. A result
// that is missing must not be added.
func (b *Busy) Add(from, to time.Duration, parts map[string]float64) {
	if to <= from {
		return
	}
	b.summaries = append(b.summaries, summary{from: from, to: to, parts: parts})
	for len(b.summaries) != 0 && b.summaries[0].to < to-keepSummaries {
		b.summaries = b.summaries[1:]
	}
}

// Shares estimates the parts of the window that ends now. A time of which no result is known is in none: the parts are of the rest of
// the window, which is OfWindow. Only the last minute is known.
func (b *Busy) Shares(now, window time.Duration) map[string]Share {
	out := map[string]Share{}
	var known time.Duration
	for _, a := range b.summaries {
		over := overlap(a.from, a.to, now-window, now)
		known += over
		for id, part := range a.parts {
			sh := out[id]
			sh.Part += part * over.Seconds()
			out[id] = sh
		}
	}
	if known <= 0 {
		return map[string]Share{}
	}
	for id, sh := range out {
		out[id] = b.share(sh.Part/known.Seconds(), known)
	}
	return out
}

// Share estimates the part of one lease. A lease that no sample names has none; ok is false if nothing is known of the window.
func (b *Busy) Share(now, window time.Duration, lease string) (sh Share, ok bool) {
	var known time.Duration
	for _, a := range b.summaries {
		known += overlap(a.from, a.to, now-window, now)
	}
	if known <= 0 {
		return Share{}, false
	}
	if sh, ok := b.Shares(now, window)[lease]; ok {
		return sh, true
	}
	sh = b.share(0, known)
	// None of n samples: a part of 1/n would not be seen in a third of the cases.
	sh.StdErr = 1 / b.samples(known)
	return sh, true
}

func (b *Busy) share(part float64, known time.Duration) Share {
	n, part := b.samples(known), min(1, part)
	return Share{Part: part, StdErr: math.Sqrt(part * (1 - part) / n), Samples: int(math.Round(part * n)), OfWindow: known}
}

// samples is how many samples the driver took in a time.
func (b *Busy) samples(known time.Duration) float64 {
	n := samplesPerSecond * known.Seconds()
	if b.Period > 0 {
		n = min(n, max(1, known.Seconds()/b.Period.Seconds()))
	}
	return n
}

// BusyVariance is the variance of a busy time in seconds², for a part of a length of time.
func BusyVariance(part float64, length time.Duration) float64 {
	return part * (1 - part) * length.Seconds() / samplesPerSecond
}
