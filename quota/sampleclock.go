package quota

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Clocks are readings of the clocks of the host at one moment.
type Clocks struct {
	Now   time.Duration // the scheduler's
	Epoch uint64        // µs since 1970
	Boot  uint64        // µs since the boot (CLOCK_BOOTTIME)
}

// SampleClock converts the timestamps of one GPU's utilisation samples to the scheduler's time. Boards and drivers differ in
// the clock of the timestamps: it takes the one whose newest sample is nearest to now. The system clock may be set at any time:
// samples from before that are dropped. The zero value works; it is not safe for concurrent use.
type SampleClock struct {
	known  bool
	boot   bool          // the timestamps are since the boot
	offset time.Duration // scheduler's time minus the system clock, at the last reading
	read   time.Duration // time of the last reading
	since  uint64
	valid  time.Duration // samples from before are dropped, because the clock was set
	resume time.Duration // all samples are dropped until then: old and new timestamps are mixed
	newest uint64        // the newest sample that was converted; 0: none since the clock was set
	newEnd time.Duration // its end
}

// forgottenAfter is after how long a sample may be missing because the driver keeps no older ones.
const forgottenAfter = 8 * time.Second

// ring is how much time the driver keeps samples for: ten seconds (NVIDIA's open kernel modules, ctrl2080perf.h), with a
// margin.
const ring = 15 * time.Second

// jump is the least change between two clocks that counts as one of them being set.
const jump = 50 * time.Millisecond

// Since is the timestamp to query the driver with: it returns newer samples only. The newest one that is known is read again. If it is
// missing the driver has lost its samples, and a time without any says nothing of the GPU.
func (c *SampleClock) Since() uint64 {
	if c.newest != 0 && c.newest == c.since {
		return c.since - 1
	}
	return c.since
}

// IsNew reports whether a sample was not converted yet.
func (c *SampleClock) IsNew(x gpu.SeriesSample) bool { return x.Time > c.newest }

// Convert converts the samples of one query. at are the clocks from just before the query.
func (c *SampleClock) Convert(id gpu.UUID, at Clocks, samples []gpu.SeriesSample) Utilization {
	epoch := time.Duration(at.Epoch) * time.Microsecond
	boot := time.Duration(at.Boot) * time.Microsecond
	offset := at.Now - epoch
	var newest uint64
	for _, x := range samples {
		newest = max(newest, x.Time)
	}
	if newest != 0 {
		t := time.Duration(newest) * time.Microsecond
		if isBoot := (boot - t).Abs() < (epoch - t).Abs(); !c.known || isBoot != c.boot {
			c.known, c.boot = true, isBoot
			c.valid = max(c.valid, at.Now-ring)
			c.newest = 0
		}
	}
	if moved := offset - c.offset; c.read != 0 && moved.Abs() > jump && !c.boot {
		// The time of the jump is unknown: it is between the two queries.
		c.valid = at.Now
		if moved > 0 && moved < ring { // set back: samples from before it have the timestamps of samples to come
			c.resume = at.Now + moved
		}
		c.since, c.newest = at.Epoch, 0
	}
	c.offset = offset
	out := Utilization{GPU: id, From: max(c.read, c.valid), UpTo: at.Now}
	if c.read == 0 {
		out.From = max(at.Now-ring, c.valid)
	}
	last := c.read
	c.read = at.Now
	if at.Now < c.resume {
		c.valid, c.since, c.newest = at.Now, at.Epoch, 0
		out.From = at.Now
		return out
	}
	lost := c.lost(at.Now, samples)
	zero := offset
	if c.boot {
		zero = at.Now - boot
	}
	unread := at.Now > last+forgottenAfter && !reachesBack(samples, zero, out.From)
	c.convert(&out, zero, samples)
	if unread {
		out.From = at.Now
		if len(out.Periods) > 0 {
			out.From = max(out.Periods[0].End-1, last) // When its period began is not known.
		}
	}
	if lost {
		out.From = at.Now
		if len(out.Periods) > 0 {
			out.From = max(out.Periods[0].End, last+1)
		}
	}
	return out
}

// lost reports whether the driver has lost its samples: the newest one that is known is missing.
func (c *SampleClock) lost(now time.Duration, samples []gpu.SeriesSample) bool {
	return c.newest != 0 && now < c.newEnd+forgottenAfter &&
		!slices.ContainsFunc(samples, func(x gpu.SeriesSample) bool { return x.Time == c.newest })
}

// reachesBack reports whether samples are older than a moment: the driver keeps as many, and there was none since then that it has not.
// Otherwise it has forgotten what was before the first one, if it was not read.
func reachesBack(samples []gpu.SeriesSample, zero, from time.Duration) bool {
	return slices.ContainsFunc(samples, func(x gpu.SeriesSample) bool { return time.Duration(x.Time)*time.Microsecond+zero <= from })
}

// convert adds the new samples to a result, in their order. zero is the time at which the clock of their timestamps began.
func (c *SampleClock) convert(out *Utilization, zero time.Duration, samples []gpu.SeriesSample) {
	known := c.newest
	for _, x := range slices.SortedFunc(slices.Values(samples), func(a, b gpu.SeriesSample) int { return cmp.Compare(a.Time, b.Time) }) {
		end := time.Duration(x.Time)*time.Microsecond + zero
		if x.Time <= known || end <= out.From-ring || end < c.valid || end > out.UpTo+jump {
			continue
		}
		c.since = max(c.since, x.Time)
		if x.Time > c.newest {
			c.newest, c.newEnd = x.Time, end
		}
		out.Periods = append(out.Periods, Period{End: end, Busy: float64(min(max(x.Percent, 0), 100)) / 100})
	}
}
