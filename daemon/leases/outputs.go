package leases

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/lease"
)

// userOutput is how many bytes of output of ended leases of one user are kept; what is older is removed. The lease that is the
// n-th live one of its user at its start has 1/n of it at most. So the i-th oldest live one has 1/i or less, and no order of starts and
// ends gives a user more than 279 MiB for 128 live leases.
const userOutput = 64 << 20

// outputOf is how many bytes of output are kept of the n-th live detached lease of a user.
func outputOf(n int) int64 { return min(launch.MaxOutput, userOutput/int64(max(n, 1))) }

// detachedOf counts the live detached leases of a user.
func (ls *Leases) detachedOf(uid int) (n int) {
	for _, l := range ls.Table.Live() {
		if l.UID == uid && l.Origin == lease.OriginDetached {
			n++
		}
	}
	return n
}

// pruneInterval is how late output is removed whose lease has ended too long ago.
const pruneInterval = 10 * time.Minute

// outputLoop removes the output of a command together with the entry of its lease.
func (ls *Leases) outputLoop(ctx context.Context) {
	dropped := ls.Ended.whenDropped()
	for {
		if _, ok := dropped.Sleep(ctx, pruneInterval); !ok {
			return
		}
		ls.pruneOutputs()
	}
}

// surplusOutputs are the ended leases whose output is more than that of a user may be: the oldest ones.
func (ls *Leases) surplusOutputs() map[string]bool {
	bytes, surplus := map[int]int64{}, map[string]bool{}
	for _, o := range ls.Ended.outputs() { // the last first
		bytes[o.uid] += ls.Detached.Outputs.Size(o.id)
		surplus[o.id] = bytes[o.uid] > userOutput
	}
	return surplus
}

// pruneOutputs removes the output of leases that are neither live nor listed as ended, and what is more than a user may have.
func (ls *Leases) pruneOutputs() {
	surplus := ls.surplusOutputs()
	ls.Detached.Outputs.Prune(func(id string) bool {
		_, live := ls.Table.Get(id)
		if live {
			return true
		}
		_, known := ls.Ended.get(id) // After the table: a lease that ends is in one of both.
		return known && !surplus[id]
	})
}
