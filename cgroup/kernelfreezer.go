package cgroup

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// KernelFreezer stops and continues the processes of a cgroup with its file cgroup.freeze. In cgroups of the service
// manager this is the only file that gpushare writes, and only in the inner cgroups of delegated scopes and, if the spec permits it, in
// those of the jobs of engines.
type KernelFreezer struct {
	Root string // the mount point of the cgroup v2 hierarchy

	kept     *keptFiles                             // nil: the files are opened for each call
	userTime func(cg string) (time.Duration, error) // of programs; nil: as the kernel counts it
}

// NewKernelFreezer returns a KernelFreezer that keeps the files of the cgroups which it froze or thawed open until Forget.
func NewKernelFreezer(root string) KernelFreezer {
	return KernelFreezer{Root: root, kept: &keptFiles{open: map[string]*freezeFiles{}}}
}

// Freeze stops all processes of the cgroup. It returns when the kernel reports that all are stopped, or when no program
// of them runs (see stillness), or with ctx's error: then some may be stopped, and the caller must thaw. It is ErrRuns too if it was
// measured that programs run. Twenty processes take about 0.1 ms, 512 about 1.5 ms. Freeze polls the state, because the kernel's
// notification comes 5 to 16 ms late (measured on Linux 6.18).
func (f KernelFreezer) Freeze(ctx context.Context, cg string) error {
	files, err := f.set(cg, true)
	if err != nil {
		return fmt.Errorf("cannot freeze %s: %w", cg, err)
	}
	defer f.done(files)
	still := stillness{h: Hierarchy{Mount: f.Root}, cg: cg, userTime: f.userTime}
	err = files.waitFor(ctx, cg, true, still.moves)
	if err != nil && still.ran {
		return fmt.Errorf("%w: %w", ErrRuns, err)
	}
	return err
}

// begin begins a freeze and does not wait for it.
func (f KernelFreezer) begin(cg string) error {
	files, err := f.set(cg, true)
	if err != nil {
		return fmt.Errorf("cannot freeze %s: %w", cg, err)
	}
	f.done(files)
	return nil
}

// Thaw continues the processes of the cgroup. It is idempotent. A missing cgroup is no error. Processes that another program keeps
// stopped in a cgroup above it, as Slurm does with a suspended step, are thawed by that one.
func (f KernelFreezer) Thaw(ctx context.Context, cg string) error {
	files, err := f.set(cg, false)
	if isRemoved(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot thaw %s: %w", cg, err)
	}
	defer f.done(files)
	return files.waitFor(ctx, cg, false, func() (string, error) {
		if f.frozenAbove(cg) {
			return "", nil
		}
		return "no cgroup above it is frozen", nil
	})
}

// frozenAbove reports whether a cgroup above this one was frozen.
func (f KernelFreezer) frozenAbove(cg string) bool {
	h := Hierarchy{Mount: f.Root}
	for at := path.Dir(cg); at != "/" && at != "."; at = path.Dir(at) {
		if set, err := h.freezeIsSet(at); set && err == nil {
			return true
		}
	}
	return false
}

// readBackTimeout bounds a measurement for which the process that measures gets no processor.
const readBackTimeout = 10 * userTimeWindow

// Frozen reports whether all processes of the cgroup are stopped, in the sense of Freeze: what the kernel does not report, because a
// thread waits for a processor, is measured too, which takes userTimeWindow. ErrNotFound when there is no such cgroup.
func (f KernelFreezer) Frozen(cg string) (bool, error) {
	if err := cleanPath(cg); err != nil {
		return false, err
	}
	v, err := readEvent(filepath.Join(f.Root, cg), "frozen")
	if err != nil || v == "1" {
		return v == "1", err
	}
	h := Hierarchy{Mount: f.Root}
	if set, err := h.freezeIsSet(cg); !set || err != nil {
		return false, err
	}
	files, err := openFreezeFiles(f.Root + cg)
	if isRemoved(err) {
		return false, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	if err != nil {
		return false, fmt.Errorf("cannot read back whether %s is frozen: %w", cg, err)
	}
	defer files.close()
	ctx, cancel := context.WithTimeout(context.Background(), readBackTimeout)
	defer cancel()
	still := stillness{h: h, cg: cg, userTime: f.userTime}
	err = files.waitFor(ctx, cg, true, func() (string, error) {
		what, err := still.moves()
		if set, setErr := h.freezeIsSet(cg); still.ran || still.unread || !set || setErr != nil {
			cancel()
		}
		return what, err
	})
	switch {
	case err == nil:
		return h.freezeIsSet(cg) // Another program may have thawed it meanwhile.
	case ctx.Err() != nil:
		return false, nil
	}
	return false, err
}

// Forget closes the files of a cgroup that was removed.
func (f KernelFreezer) Forget(cg string) { f.kept.forget(cg) }

// set writes cgroup.freeze. The caller calls done with the files.
func (f KernelFreezer) set(cg string, frozen bool) (*freezeFiles, error) {
	for {
		files, old, err := f.files(cg)
		if err != nil {
			return nil, err
		}
		if err = files.set(frozen); err == nil {
			return files, nil
		}
		f.done(files)
		if !old || !isClosed(err) {
			return nil, err
		}
		f.Forget(cg) // There may be another cgroup of that name.
	}
}

// files returns the files of a cgroup. old: they were open before.
func (f KernelFreezer) files(cg string) (files *freezeFiles, old bool, err error) {
	if files := f.kept.get(cg); files != nil {
		return files, true, nil
	}
	if err := cleanPath(cg); err != nil {
		return nil, false, err
	}
	files, err = openFreezeFiles(f.Root + cg)
	if err != nil {
		return nil, false, err
	}
	return f.kept.put(cg, files), false, nil
}

// done closes files that are not kept.
func (f KernelFreezer) done(files *freezeFiles) {
	if !files.kept {
		files.close()
	}
}

// cleanPath refuses an invalid cgroup path and the root, which has no freezer. Paths also come from files.
func cleanPath(cg string) error {
	if !strings.HasPrefix(cg, "/") || path.Clean(cg) != cg || cg == "/" || strings.ContainsRune(cg, 0) {
		return fmt.Errorf("cgroup path %q: %w", cg, ErrNotFound)
	}
	return nil
}
