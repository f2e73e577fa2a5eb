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
func (d *Viewer) getCounters(c *call) error {
	w := d.driver.Stats()
	return c.reply(http.StatusOK, map[string]uint64{
		"converge.runs":   d.Counters.converges.Load(),
		"worker.messages": w.Messages,
		"worker.writes":   w.Writes,
		"slice.writes":    d.Counters.sliceWrites.Load(),
		"guard.writes":    d.Counters.guardWrites.Load(),
		"steps":           d.Counters.steps.Load(),
		"cdi.writes":      d.Counters.cdiWrites.Load(),
		"freezes":         d.Counters.freezes.Load(),
		"drift.mended":    d.Counters.drifts.Load(),
		"status.renders":  d.Counters.renders.Load(),
		"writes":          w.Writes + d.Counters.sliceWrites.Load() + d.Counters.guardWrites.Load() + d.Counters.steps.Load() + d.Counters.cdiWrites.Load(),
	})
}
