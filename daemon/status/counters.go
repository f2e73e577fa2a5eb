package status

import (
	"net/http"
	"time"

	"github.com/gpushare/gpushare/daemon/server"
)

// GetCounters returns the counters by name. "writes" is the sum of all writes to the node.
func (v *Viewer) GetCounters(c *server.Call) error {
	w := v.Driver.Stats()
	var readings time.Duration
	for _, d := range w.Readings {
		readings += d
	}
	return c.Reply(http.StatusOK, map[string]uint64{
		"converge.runs":       v.Counters.Converges.Load(),
		"worker.messages":     w.Messages,
		"worker.writes":       w.Writes,
		"worker.readings.us":  uint64(readings.Microseconds()), // inside the driver
		"memory-limit.writes": v.Counters.MemoryLimitWrites.Load(),
		"slice.writes":        v.Counters.SliceWrites.Load(),
		"login-filter.writes": v.Counters.FilterWrites.Load(),
		"steps":               v.Counters.Steps.Load(),
		"cdi.writes":          v.Counters.CDIWrites.Load(),
		"freezes":             v.Counters.Freezes.Load(),
		"drift.corrected":     v.Counters.Drifts.Load(),
		"escape.searches":     v.Counters.EscapeSearches.Load(),
		"status.renders":      v.Counters.Renders.Load(),
		"writes": w.Writes + v.Counters.SliceWrites.Load() + v.Counters.FilterWrites.Load() +
			v.Counters.Steps.Load() + v.Counters.CDIWrites.Load(),
	})
}
