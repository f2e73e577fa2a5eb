package control

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/mps"
)

// logInterval is the time between two looks at the log. A daemon writes several lines for each reading, so within it the log of
// one that is not silenced has grown.
const logInterval = 10 * time.Minute

// logCheck is the end of the log when it was last read.
type logCheck struct {
	at     time.Time // zero: not yet
	last   string    // line
	silent bool
}

// checkLog reports whether the daemon, which was queried since the last check, writes no log any more: a hundred bytes that are no
// record silence the log until the daemon is restarted. A log that cannot be read says nothing.
func (s *Supervisor) checkLog(ctx context.Context, id mps.Device, c *logCheck, now time.Time) bool {
	if !c.at.IsZero() && now.Sub(c.at) < logInterval {
		return c.silent
	}
	var last string
	if lines := s.Units.LastLines(ctx, mps.UnitName(id), 1); len(lines) > 0 {
		last = lines[0]
	}
	*c = logCheck{at: now, last: last, silent: !c.at.IsZero() && last != "" && last == c.last}
	return c.silent
}
