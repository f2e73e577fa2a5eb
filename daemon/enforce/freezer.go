package enforce

import (
	"context"
	"time"

	"github.com/gpushare/gpushare/cgroup"
)

// freezer freezes leases, each for several reasons: a lease is frozen while one is left. A freeze lasts until Thaw for its
// reason, and at most for its duration.
type freezer interface {
	Freeze(ctx context.Context, id string, reason cgroup.FreezeReason, d time.Duration) error
	Thaw(ctx context.Context, id string, reason cgroup.FreezeReason) error
	Reasons(id string) []cgroup.FreezeReason
	// Retain forgets all leases that are not in the list.
	Retain(ctx context.Context, ids map[string]bool) error
	// Ready returns nil when leases can be frozen.
	Ready() error
}
