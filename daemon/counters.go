package daemon

import (
	"net/http"
	"sync/atomic"
)

// counters count what the daemon did, so that "nothing" can be proved.
type counters struct {
	converges   atomic.Uint64 // runs of the converge loop
	sliceWrites atomic.Uint64 // changes of slices
	guardWrites atomic.Uint64 // changes of guards for a lease that came or went
	steps       atomic.Uint64 // steps carried out
	cdiWrites   atomic.Uint64 // files for container runtimes, written or removed
	freezes     atomic.Uint64
	drifts      atomic.Uint64 // things that somebody else changed and that were set again
	renders     atomic.Uint64 // of the status
}

// getCounters answers the counters by name. "writes" is everything that changed the node.
func (d *Daemon) getCounters(c *call) error {
	w := d.driver.Stats()
	return c.reply(http.StatusOK, map[string]uint64{
		"converge.runs":   d.counters.converges.Load(),
		"worker.messages": w.Messages,
		"worker.writes":   w.Writes,
		"slice.writes":    d.counters.sliceWrites.Load(),
		"guard.writes":    d.counters.guardWrites.Load(),
		"steps":           d.counters.steps.Load(),
		"cdi.writes":      d.counters.cdiWrites.Load(),
		"freezes":         d.counters.freezes.Load(),
		"drift.mended":    d.counters.drifts.Load(),
		"status.renders":  d.counters.renders.Load(),
		"writes":          w.Writes + d.counters.sliceWrites.Load() + d.counters.guardWrites.Load() + d.counters.steps.Load() + d.counters.cdiWrites.Load(),
	})
}
