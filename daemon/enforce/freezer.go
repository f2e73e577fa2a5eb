package enforce

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/cgroup"
)

// freezer freezes leases, each for several reasons: a lease is frozen while one is left. A freeze lasts until Thaw for its
// reason, and at most for its duration. Freeze and Thaw read the context's Err while they wait.
type freezer interface {
	Freeze(ctx context.Context, id string, reason cgroup.FreezeReason, d time.Duration) error
	Thaw(ctx context.Context, id string, reason cgroup.FreezeReason) error
	Reasons(id string) []cgroup.FreezeReason
	// Retain forgets all leases that are not in the list.
	Retain(ctx context.Context, ids map[string]bool) error
	// Ready returns nil when leases can be frozen.
	Ready() error
}

// within is a context that ends after a time, for Freeze and Thaw, which read Err. It has no timer: to make one for each slice
// would take as much of the CPU as the freeze. Done is that of ctx.
type within struct {
	context.Context
	end time.Time
}

func (w within) Deadline() (time.Time, bool) { return w.end, true }

func (w within) Err() error {
	if err := w.Context.Err(); err != nil || time.Now().Before(w.end) {
		return err
	}
	return context.DeadlineExceeded
}

// freeze freezes a lease for another reason than time slices: it gets none, and no other lease waits for it.
func (en *Enforcer) freeze(ctx context.Context, id string, reason cgroup.FreezeReason, d time.Duration) error {
	already := en.withheld(id)
	if err := en.Freezer.Freeze(ctx, id, reason, d); err != nil {
		return err
	}
	if !already {
		en.Shares.wakeUp()
	}
	return nil
}

// thaw ends freeze.
func (en *Enforcer) thaw(ctx context.Context, id string, reason cgroup.FreezeReason) error {
	if err := en.Freezer.Thaw(ctx, id, reason); err != nil {
		return err
	}
	en.Shares.wakeUp()
	return nil
}

// withheld reports whether a lease is frozen for another reason than time slices.
func (en *Enforcer) withheld(id string) bool {
	if en.Freezer == nil {
		return false
	}
	for _, r := range en.Freezer.Reasons(id) {
		if r != cgroup.ForTimeSlice {
			return true
		}
	}
	return false
}
