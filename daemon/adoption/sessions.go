package adoption

import (
	"context"

	"github.com/gpushare/gpushare/cgroup"
)

// SessionSource reports who is logged in and where units run.
type SessionSource interface {
	// Logins lists the users who have a cgroup for all their logins.
	Logins(ctx context.Context) ([]cgroup.Login, error)
	// UnitCgroup returns the cgroup of a unit; cgroup.ErrNotFound if it does not run.
	UnitCgroup(ctx context.Context, unit string) (string, error)
	// LoginMemory reads the memory limit of all logins of a user together; nil if there is none.
	LoginMemory(ctx context.Context, uid int) (*uint64, error)
	// SetLoginMemory sets that limit until the next boot; nil removes it.
	SetLoginMemory(ctx context.Context, uid int, limit *uint64) error
}
