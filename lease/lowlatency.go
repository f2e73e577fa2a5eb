package lease

import (
	"fmt"
	"slices"

	"github.com/gpushare/gpushare/api"
)

// mostLowLatency is the share that all grants with latency: low on one GPU may have together, in percent. Overcommit does not change
// it: what such a grant has is no weight, but a part of the time.
const mostLowLatency = float64(api.MostLowLatency)

// lowLatency is the grant's share if it has latency: low, in percent; otherwise 0.
func (g *Grant) lowLatency() float64 {
	if !g.Spec.LowLatency() {
		return 0
	}
	return g.percent()
}

// lowLatencyLeft is what the grants with latency: low of a GPU but one leave of what they may have together; reservedOnly leaves out
// grants that are not reserved.
func (t *gpuUsage) lowLatencyLeft(but Key, reservedOnly bool) float64 {
	left := mostLowLatency
	for k, s := range t.shares {
		if k != but && (s.reserved || !reservedOnly) {
			left -= s.lowLatency
		}
	}
	return left
}

// fitsLowLatency reports whether the grant has latency: low and fits in what is left for that, or has no such share.
func (g *Grant) fitsLowLatency(left float64) bool {
	return g.lowLatency() <= max(left, 0)+shareTolerance
}

// lowLatencyText says what is left.
func lowLatencyText(left float64) string {
	return fmt.Sprintf(
		"%s of its time left for grants with latency: low, which may have %s together",
		percentText(max(left, 0)),
		percentText(mostLowLatency),
	)
}

// reviseLowLatency returns the share and the latency that a lease has under a new spec. If its grant does not fit next to the others
// with latency: low any more, a lease that has it keeps it with the share that it had, and one that has it not does not get it.
func (t *Table) reviseLowLatencyLocked(e *entry, g *Grant, o *occupancy) (share api.Percent, latency string) {
	old, now := e.Terms.share(), g.share()
	fits := g.lowLatency() <= e.Terms.lowLatency()
	if !fits {
		fits = true
		for _, id := range e.Place.GPUs {
			fits = fits && g.fitsLowLatency(o.shared(&e.Place, id).lowLatencyLeft(g.Key(), false))
		}
	}
	if fits {
		return now.Share, g.Spec.Latency
	}
	text := fmt.Sprintf(
		"grant %s has latency: low now, but that does not fit next to the other grants with it: this lease is without",
		g.Spec.Name,
	)
	if share = now.Share; e.Terms.Spec.LowLatency() {
		share = old.Share
		text = fmt.Sprintf(
			"the share of grant %s is %s now, but that does not fit next to the other grants with latency: low: this lease keeps %s",
			g.Spec.Name, now.Share, old.Share,
		)
	}
	t.noticeLocked(e, "lease.share", text)
	return share, e.Terms.Spec.Latency
}

// fallLowLatencyLocked takes out of use what a new spec takes from leases with latency: low. Time can be given to another lease at once, so
// that what one gives and another gets may be in one spec.
func (t *Table) fallLowLatencyLocked(o *occupancy) {
	for _, e := range t.sortedLocked() {
		i := slices.IndexFunc(t.view.Grants, func(g Grant) bool { return g.Key() == e.Terms.Key() })
		if i < 0 || t.view.Grants[i].Kind() != e.Terms.Kind() || t.view.Grants[i].lowLatency() >= e.Terms.lowLatency() {
			continue
		}
		for _, id := range e.Place.GPUs {
			if p := o.shared(&e.Place, id).shares[e.Terms.Key()]; p != nil {
				p.lowLatency = t.view.Grants[i].lowLatency()
			}
		}
	}
}
