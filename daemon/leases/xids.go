package leases

import (
	"context"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/lease"
)

const (
	// saveInterval is the least time between two writings of what was recorded of leases while they run.
	saveInterval = time.Second
	// saveAgain is when a writing that failed is tried again.
	saveAgain = 10 * time.Second
	// saveTimeout limits the last writing, when the daemon stops.
	saveTimeout = 2 * time.Second
)

// RecordXID records an XID that concerns a lease, also one that has ended.
func (ls *Leases) RecordXID(id string, x api.LeaseXID) {
	ls.revise(id, func(l *lease.Lease) bool { l.RecordXID(x); return true })
}

// RetractXID takes one report of RecordXID back.
func (ls *Leases) RetractXID(id string, x api.LeaseXID) {
	ls.revise(id, func(l *lease.Lease) bool { return l.RetractXID(x) })
}

// RecordLost records that a GPU of a lease is lost, and reports whether that was not recorded.
func (ls *Leases) RecordLost(id string, g api.LostGPU) bool {
	return ls.revise(id, func(l *lease.Lease) bool { return l.RecordLost(g) })
}

// RecordFound records for all leases that a GPU answers again.
func (ls *Leases) RecordFound(id gpu.UUID, at time.Time) {
	if ls.Table.Found(id, at) {
		ls.revised()
	}
}

// EndedLately returns the leases that ended no longer ago than d: an error of a GPU ends programs before it is read.
func (ls *Leases) EndedLately(d time.Duration) (out []lease.Lease) {
	for _, e := range ls.Ended.all() { // the last first
		if time.Since(e.At) > d {
			break
		}
		out = append(out, e.Lease)
	}
	return slices.Clip(out)
}

// revise changes what is recorded of a lease, and reports whether that changed it.
func (ls *Leases) revise(id string, f func(l *lease.Lease) bool) bool {
	changed, found := ls.Table.Revise(id, f)
	switch {
	case found && changed:
		ls.revised()
	case !found:
		if changed = ls.Ended.revise(id, f); changed {
			ls.saveEnded()
		}
	}
	return changed
}

func (ls *Leases) revised() {
	ls.Invalidate()
	ls.Revised.Set()
}

// saveLoop writes what was recorded of running leases, so that it is there after the daemon was killed or stopped, until ctx ends. What
// cannot be written is tried again.
func (ls *Leases) saveLoop(ctx context.Context) {
	defer ls.saveLast(ctx)
	for {
		if _, ok := ls.Revised.Sleep(ctx, time.Hour); !ok {
			return
		}
		pause := saveInterval
		if err := ls.Table.Save(ctx); err != nil {
			ls.Revised.Set()
			pause = saveAgain
			if ctx.Err() == nil {
				ls.Log.Warn("cannot record what happened to leases", "error", err, "again_in", pause)
			}
		}
		if !loop.Pause(ctx, pause) {
			return
		}
	}
}

// saveLast writes at the end what the loop has not written: what was recorded within its pause, and what failed.
func (ls *Leases) saveLast(ctx context.Context) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	ls.saveEnded()
	if err := ls.Table.Save(end); err != nil {
		ls.Log.Warn("cannot record what happened to leases", "error", err)
	}
}
