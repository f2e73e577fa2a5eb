package cgroup

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// KernelFreezer stops and continues the processes of a cgroup by its cgroup.freeze. It is the one cgroup file that is written
// in cgroups of the service manager, and only in the inner cgroups of delegated scopes.
type KernelFreezer struct {
	Root string // where the cgroup v2 hierarchy is mounted
}

// Freeze stops all processes of the cgroup and returns once the kernel says that all are stopped, or with ctx's error:
// then some may be, and the caller thaws. Twenty processes take about 0.1 ms, 512 about 1.5 ms; the state is read again
// and again meanwhile, because the notification comes 5 to 16 ms late (measured on Linux 6.18).
func (f KernelFreezer) Freeze(ctx context.Context, cg string) error {
	if err := f.write(cg, "1"); err != nil {
		return fmt.Errorf("cannot freeze %s: %w", cg, err)
	}
	return f.waitFor(ctx, cg, true)
}

// Thaw continues the processes of the cgroup. It is idempotent; a cgroup that is gone is no error, for nobody in it is
// frozen.
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

// Frozen reads back whether all processes of the cgroup are stopped. ErrNotFound when there is no such cgroup.
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
		// The first look is too early by a hair: look again at once.
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

// cleanPath refuses what is no cgroup's path, or is the root, which has no freezer: paths also come from files.
func cleanPath(cg string) error {
	if !strings.HasPrefix(cg, "/") || path.Clean(cg) != cg || cg == "/" || strings.ContainsRune(cg, 0) {
		return fmt.Errorf("cgroup path %q: %w", cg, ErrNotFound)
	}
	return nil
}
