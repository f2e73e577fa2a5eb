package quota

import (
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
}

// ring is how much time the driver keeps samples for: ten seconds (NVIDIA's open kernel modules, ctrl2080perf.h), with a
// margin.
const ring = 15 * time.Second

// jump is the least change between two clocks that counts as one of them being set.
const jump = 50 * time.Millisecond

// Since is the timestamp to query the driver with: it returns newer samples only.
func (c *SampleClock) Since() uint64 { return c.since }

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
		}
	}
	if moved := offset - c.offset; c.read != 0 && moved.Abs() > jump && !c.boot {
		// The time of the jump is unknown: it is between the two queries.
		c.valid = at.Now
		if moved > 0 && moved < ring { // set back: samples from before it have the timestamps of samples to come
			c.resume = at.Now + moved
		}
		c.since = at.Epoch
	}
	c.offset = offset
	out := Utilization{GPU: id, From: max(c.read, c.valid), UpTo: at.Now}
	if c.read == 0 {
		out.From = max(at.Now-ring, c.valid)
	}
	c.read = at.Now
	if at.Now < c.resume {
		c.valid, c.since = at.Now, at.Epoch
		out.From = at.Now
		return out
	}
	zero := offset
	if c.boot {
		zero = at.Now - boot
	}
	for _, x := range samples {
		end := time.Duration(x.Time)*time.Microsecond + zero
		if end <= out.From-ring || end < c.valid || end > at.Now+jump {
			continue
		}
		c.since = max(c.since, x.Time)
		out.Periods = append(out.Periods, Period{End: end, Busy: float64(min(max(x.Percent, 0), 100)) / 100})
	}
	return out
}
