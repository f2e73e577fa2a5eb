package adoption

import (
	"context"

	"github.com/gpushare/gpushare/cgroup"
)

// SessionSource is what tells who is logged in and where units run.
type SessionSource interface {
	// Logins lists the users who have a cgroup for all of their logins.
	Logins(ctx context.Context) ([]cgroup.Login, error)
	// UnitCgroup is where a unit's processes are; cgroup.ErrNotFound when it does not run.
	UnitCgroup(ctx context.Context, unit string) (string, error)
	// LoginMemory reads the limit of a user's logins together; nil when there is none.
	LoginMemory(ctx context.Context, uid int) (*uint64, error)
	// SetLoginMemory sets that limit until the next boot; nil takes it away.
	SetLoginMemory(ctx context.Context, uid int, limit *uint64) error
}
