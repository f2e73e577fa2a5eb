package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/systemd"
)

// loginDirs finds logins by the directories below the cgroup of logins, where there is no service manager. It writes
// nothing: those directories belong to the program that created them.
type loginDirs struct {
	h    cgroup.Hierarchy
	top  string // empty: unknown
	name func(uid int) string
}

// Logins lists the directories user-UID.slice that have a process.
func (f loginDirs) Logins(context.Context) ([]cgroup.Login, error) {
	if f.top == "" {
		return nil, cgroup.ErrNoLogins
	}
	entries, _, err := boundedread.Entries(f.h.Dir(f.top), boundedread.Files)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list logins: %w", err)
	}
	var out []cgroup.Login
	for _, e := range entries {
		digits, is := strings.CutPrefix(strings.TrimSuffix(e.Name(), ".slice"), "user-")
		uid, err := strconv.Atoi(digits)
		if !is || err != nil || e.Name() != systemd.UserSlice(uid) {
			continue
		}
		l := cgroup.Login{UID: uid, Name: f.name(uid), Unit: e.Name(), Cgroup: path.Join(f.top, e.Name())}
		if busy, err := f.h.Populated(l.Cgroup); err == nil && busy {
			out = append(out, l)
		}
	}
	return out, nil
}

// UnitCgroup knows no unit.
func (f loginDirs) UnitCgroup(_ context.Context, unit string) (string, error) {
	return "", fmt.Errorf("cannot find unit %s without a service manager: %w", unit, cgroup.ErrNotSupported)
}

// LoginMemory knows no limit.
func (f loginDirs) LoginMemory(context.Context, int) (*uint64, error) {
	return nil, fmt.Errorf("cannot limit logins without a service manager: %w", cgroup.ErrNotSupported)
}

// SetLoginMemory sets none.
func (f loginDirs) SetLoginMemory(ctx context.Context, uid int, _ *uint64) error {
	_, err := f.LoginMemory(ctx, uid)
	return err
}
