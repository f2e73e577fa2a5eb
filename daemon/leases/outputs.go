package leases

import (
	"context"
	"time"
)

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

// pruneOutputs removes the output of leases that are neither live nor listed as ended.
func (ls *Leases) pruneOutputs() {
	ls.Detached.Outputs.Prune(func(id string) bool {
		_, live := ls.Table.Get(id)
		if live {
			return true
		}
		_, known := ls.Ended.get(id) // After the table: a lease that ends is in one of both.
		return known
	})
}
