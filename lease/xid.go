package lease

import (
	"context"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

const (
	// maxXIDs is how many kinds of XIDs a lease keeps.
	maxXIDs = 8
	// maxLostGPUs is how many losses of its GPUs a lease keeps: each GPU of a node once, and some twice.
	maxLostGPUs = 32
)

// RecordXID adds an XID that concerns the lease. Those of one number, GPU and relation are counted together.
func (l *Lease) RecordXID(x api.LeaseXID) {
	kept := slices.Clone(l.XIDs)
	x.Count = 1
	if i := slices.IndexFunc(kept, sameXID(&x)); i >= 0 {
		x.Count += kept[i].Count
		kept = slices.Delete(kept, i, i+1)
	}
	kept = append(kept, x)
	l.XIDs = kept[max(0, len(kept)-maxXIDs):]
}

// RetractXID takes back one report of RecordXID: it became known that it concerns another lease. It reports whether there was one.
func (l *Lease) RetractXID(x api.LeaseXID) bool {
	kept := slices.Clone(l.XIDs)
	i := slices.IndexFunc(kept, sameXID(&x))
	if i < 0 {
		return false
	}
	if kept[i].Count--; kept[i].Count == 0 {
		kept = slices.Delete(kept, i, i+1)
	}
	l.XIDs = kept
	return true
}

// RecordLost records that a GPU of the lease is lost, and reports whether that was not recorded.
func (l *Lease) RecordLost(g api.LostGPU) bool {
	if slices.ContainsFunc(l.LostGPUs, func(o api.LostGPU) bool { return o.GPU == g.GPU && o.Until == nil }) {
		return false
	}
	kept := append(slices.Clone(l.LostGPUs), g)
	l.LostGPUs = kept[max(0, len(kept)-maxLostGPUs):]
	return true
}

// recordFound records that a GPU answers again, and reports whether it was lost.
func (l *Lease) recordFound(id gpu.UUID, at time.Time) bool {
	i := slices.IndexFunc(l.LostGPUs, func(o api.LostGPU) bool { return o.GPU == string(id) && o.Until == nil })
	if i < 0 {
		return false
	}
	l.LostGPUs = slices.Clone(l.LostGPUs)
	l.LostGPUs[i].Until = &at
	return true
}

// Revise changes what is recorded of a lease with f, which reports whether it changed something and may use the methods RecordXID,
// RetractXID and RecordLost. It returns that, and whether there is such a lease.
func (t *Table) Revise(id string, f func(l *Lease) bool) (changed, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.leases[id]
	if e == nil {
		return false, false
	}
	if changed = f(&e.Lease); changed {
		t.version++
	}
	return changed, true
}

// Found records for all leases that a GPU answers again, and reports whether that changes one.
func (t *Table) Found(id gpu.UUID, at time.Time) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.leases {
		if e.recordFound(id, at) {
			t.version++
			changed = true
		}
	}
	return changed
}

// Save writes the state if something in it is newer than what was written.
func (t *Table) Save(ctx context.Context) error { return t.save(ctx) }

// sameXID finds the entry that an XID is counted in.
func sameXID(x *api.LeaseXID) func(api.LeaseXID) bool {
	return func(o api.LeaseXID) bool { return o.XID == x.XID && o.GPU == x.GPU && o.Relation == x.Relation }
}
