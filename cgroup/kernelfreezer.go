package cgroup

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// KernelFreezer stops and continues the processes of a cgroup with its file cgroup.freeze. In cgroups of the service
// manager this is the only file that gpushare writes, and only in the inner cgroups of delegated scopes.
type KernelFreezer struct {
	Root string // the mount point of the cgroup v2 hierarchy
}

// Freeze stops all processes of the cgroup. It returns when the kernel reports that all are stopped, or with ctx's error:
// then some may be stopped, and the caller must thaw. Twenty processes take about 0.1 ms, 512 about 1.5 ms. Freeze polls
// the state, because the kernel's notification comes 5 to 16 ms late (measured on Linux 6.18).
func (f KernelFreezer) Freeze(ctx context.Context, cg string) error {
	if err := f.write(cg, "1"); err != nil {
		return fmt.Errorf("cannot freeze %s: %w", cg, err)
	}
	return f.waitFor(ctx, cg, true)
}

// Thaw continues the processes of the cgroup. It is idempotent. A missing cgroup is no error.
func (f KernelFreezer) Thaw(ctx context.Context, cg string) error {
	err := f.write(cg, "0")
	if isRemoved(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot thaw %s: %w", cg, err)
	}
	return f.waitFor(ctx, cg, false)
}

// Frozen reports whether all processes of the cgroup are stopped. ErrNotFound when there is no such cgroup.
func (f KernelFreezer) Frozen(cg string) (bool, error) {
	if err := cleanPath(cg); err != nil {
		return false, err
	}
	v, err := readEvent(filepath.Join(f.Root, cg), "frozen")
	return v == "1", err
}

func (f KernelFreezer) waitFor(ctx context.Context, cg string, want bool) error {
	for first := true; ; first = false {
		is, err := f.Frozen(cg)
		if err != nil {
			return err
		}
		if is == want {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s is not %s yet: %w", cg, map[bool]string{true: "frozen", false: "thawed"}[want], err)
		}
		// The first read is nearly always too early: read again without a pause.
		if !first {
			pause(pollPause)
		}
	}
}

func (f KernelFreezer) write(cg, value string) error {
	if err := cleanPath(cg); err != nil {
		return err
	}
	return writeFile(filepath.Join(f.Root, cg, "cgroup.freeze"), value)
}

// cleanPath refuses an invalid cgroup path and the root, which has no freezer. Paths also come from files.
func cleanPath(cg string) error {
	if !strings.HasPrefix(cg, "/") || path.Clean(cg) != cg || cg == "/" || strings.ContainsRune(cg, 0) {
		return fmt.Errorf("cgroup path %q: %w", cg, ErrNotFound)
	}
	return nil
}
