package report

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
)

// xids counts the XID errors that the driver reported since the daemon started. The zero value works.
type xids struct {
	mu  locks.Mutex[locks.Leaf] // guards all
	all map[xidKey]XIDCount
}

type xidKey struct {
	gpu gpu.UUID
	xid uint64
}

// XIDCount is how often the driver reported one XID error of one GPU.
type XIDCount struct {
	GPU   gpu.UUID
	XID   uint64
	Count uint64
	Last  time.Time
}

// Add counts one.
func (x *xids) Add(id gpu.UUID, xid uint64, at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == nil {
		x.all = map[xidKey]XIDCount{}
	}
	key := xidKey{id, xid}
	x.all[key] = XIDCount{GPU: id, XID: xid, Count: x.all[key].Count + 1, Last: at}
}

// List returns them in the order of GPUs and numbers.
func (x *xids) List() []XIDCount {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]XIDCount, 0, len(x.all))
	for _, n := range x.all {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b XIDCount) int { return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.XID, b.XID)) })
	return out
}
