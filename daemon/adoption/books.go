package adoption

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/systemd"
)

// Books is what tells who is logged in and where units run.
type Books interface {
	// Logins lists the users who have a cgroup for all of their logins.
	Logins(ctx context.Context) ([]systemd.Login, error)
	// UnitCgroup is where a unit's processes are; cgroup.ErrNotFound when it does not run.
	UnitCgroup(ctx context.Context, unit string) (string, error)
	// LoginMemory reads the limit of a user's logins together; nil when there is none.
	LoginMemory(ctx context.Context, uid int) (*uint64, error)
	// SetLoginMemory sets that limit until the next boot; nil takes it away.
	SetLoginMemory(ctx context.Context, uid int, limit *uint64) error
}

var _ Books = (*systemd.Adapter)(nil)

// LoginFolders tells who is logged in by the folders below the cgroup of logins, where no service manager keeps books.
// It writes nothing: whoever made the folders has that right.
type LoginFolders struct {
	H    cgroup.Hierarchy
	Top  string // empty: none is known
	Name func(uid int) string
}

// Logins lists the folders user-UID.slice that hold a process.
func (f LoginFolders) Logins(context.Context) ([]systemd.Login, error) {
	if f.Top == "" {
		return nil, systemd.ErrNoLogind
	}
	entries, err := os.ReadDir(f.H.Dir(f.Top))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list logins: %w", err)
	}
	var out []systemd.Login
	for _, e := range entries {
		digits, is := strings.CutPrefix(strings.TrimSuffix(e.Name(), ".slice"), "user-")
		uid, err := strconv.Atoi(digits)
		if !is || err != nil || e.Name() != systemd.UserSlice(uid) {
			continue
		}
		l := systemd.Login{UID: uid, Name: f.Name(uid), Unit: e.Name(), Cgroup: path.Join(f.Top, e.Name())}
		if busy, err := f.H.Populated(l.Cgroup); err == nil && busy {
			out = append(out, l)
		}
	}
	return out, nil
}

// UnitCgroup knows no unit.
func (f LoginFolders) UnitCgroup(_ context.Context, unit string) (string, error) {
	return "", fmt.Errorf("cannot look for %s without a service manager: %w", unit, cgroup.ErrNotSupported)
}

// LoginMemory knows no limit.
func (f LoginFolders) LoginMemory(context.Context, int) (*uint64, error) {
	return nil, fmt.Errorf("cannot limit logins without a service manager: %w", cgroup.ErrNotSupported)
}

// SetLoginMemory sets none.
func (f LoginFolders) SetLoginMemory(ctx context.Context, uid int, _ *uint64) error {
	_, err := f.LoginMemory(ctx, uid)
	return err
}
