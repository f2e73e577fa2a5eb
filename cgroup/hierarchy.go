package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/procfs"
)

// Hierarchy is the mounted cgroup v2 hierarchy. Its methods take cgroup paths as /proc/PID/cgroup shows them, "/" being
// the root. They only read, move processes and kill: limits belong to whoever made the cgroup.
type Hierarchy struct {
	Mount string // absolute, "/sys/fs/cgroup" on most hosts
}

// FindHierarchy looks the cgroup v2 hierarchy up in this process's mounts. ErrNotSupported when there is none.
func FindHierarchy() (Hierarchy, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Hierarchy{}, fmt.Errorf("cannot find the cgroup v2 hierarchy: %w", err)
	}
	mount, ok := findMount(string(b))
	if !ok {
		return Hierarchy{}, fmt.Errorf("cannot find the cgroup v2 hierarchy: none is mounted: %w", ErrNotSupported)
	}
	return Hierarchy{Mount: mount}, nil
}

// findMount picks the mount of the whole hierarchy from a mountinfo file (proc_pid_mountinfo(5)). A mount of a part of
// it will not do: paths in /proc/PID/cgroup are relative to the root.
func findMount(mountinfo string) (string, bool) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		if !ok {
			continue
		}
		f, kind := strings.Fields(before), strings.Fields(after)
		if len(f) >= 5 && len(kind) >= 1 && kind[0] == "cgroup2" && f[3] == "/" {
			return unescapeMount(f[4]), true
		}
	}
	return "", false
}

// unescapeMount undoes the kernel's octal escapes of space, tab, newline and backslash.
func unescapeMount(s string) string {
	for _, e := range []struct{ code, char string }{{`\040`, " "}, {`\011`, "\t"}, {`\012`, "\n"}, {`\134`, `\`}} {
		s = strings.ReplaceAll(s, e.code, e.char)
	}
	return s
}

// Dir is the directory of a cgroup.
func (h Hierarchy) Dir(cg string) string { return filepath.Join(h.Mount, cg) }

// Exists tells whether there is such a cgroup.
func (h Hierarchy) Exists(cg string) bool {
	fi, err := os.Stat(h.Dir(cg))
	return err == nil && fi.IsDir()
}

// Writable tells whether this process may make cgroups in the hierarchy.
func (h Hierarchy) Writable() bool { return unix.Access(h.Mount, unix.W_OK) == nil }

// Controllers are the controllers that the hierarchy has.
func (h Hierarchy) Controllers() ([]string, error) {
	b, err := os.ReadFile(filepath.Join(h.Mount, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the controllers of %s: %w", h.Mount, err)
	}
	return strings.Fields(string(b)), nil
}

// Populated tells whether the cgroup or one below it holds a process. ErrNotFound when there is no such cgroup.
func (h Hierarchy) Populated(cg string) (bool, error) {
	v, err := readEvent(h.Dir(cg), "populated")
	return v == "1", err
}

// Processes lists the processes in the cgroup and in all below it, in ascending order, with their start times.
// ErrNotFound when there is no such cgroup.
func (h Hierarchy) Processes(cg string) ([]Process, error) {
	pids, err := h.pids(cg)
	if err != nil {
		return nil, err
	}
	slices.Sort(pids)
	ps := make([]Process, 0, len(pids))
	for _, pid := range slices.Compact(pids) {
		if start, err := procfs.Start(pid); err == nil {
			ps = append(ps, Process{PID: pid, Start: start})
		}
	}
	return ps, nil
}

// Children lists the cgroups right below one, in ascending order. ErrNotFound when there is no such cgroup.
func (h Hierarchy) Children(cg string) ([]string, error) {
	// Most have none, and dozens of files: that they have none the kernel tells in the count of links.
	var st unix.Stat_t
	if err := unix.Stat(h.Dir(cg), &st); err == nil && st.Nlink == 2 {
		return nil, nil
	}
	entries, err := os.ReadDir(h.Dir(cg))
	if isRemoved(err) {
		return nil, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list cgroup %s: %w", cg, err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, path.Join(cg, e.Name()))
		}
	}
	return out, nil
}

// MemoryNodes are the NUMA nodes that the cgroup's memory comes from, as "0-1"; empty where nobody chose any.
func (h Hierarchy) MemoryNodes(cg string) string {
	b, err := os.ReadFile(filepath.Join(h.Dir(cg), "cpuset.mems"))
	if err != nil {
		return "" // There is no such controller.
	}
	return strings.TrimSpace(string(b))
}

// Direct lists the pids in the cgroup itself, not in those below it.
func (h Hierarchy) Direct(cg string) ([]int, error) { return readPIDs(h.Dir(cg)) }

func (h Hierarchy) pids(cg string) ([]int, error) {
	var all []int
	top := h.Dir(cg)
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if p != top && isRemoved(err) {
				return nil // a cgroup below went while we looked
			}
			return err
		}
		if !d.IsDir() {
			return nil
		}
		pids, err := readPIDs(p)
		if err != nil && (p == top || !errors.Is(err, ErrNotFound)) {
			return err
		}
		all = append(all, pids...)
		return nil
	})
	if isRemoved(err) {
		return nil, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the processes of cgroup %s: %w", cg, err)
	}
	return all, nil
}

// Place moves the process into the cgroup and reads back that it is there. ErrWrongCgroup when it is somewhere else
// afterwards; procfs.ErrNoProcess when it ended.
func (h Hierarchy) Place(p Process, cg string) error {
	// The pid is held while it is written: else it could become another process between the check and the write.
	pidfd, err := procfs.OpenPidfd(p.PID, p.Start)
	if err != nil {
		return fmt.Errorf("cannot move process %d: %w", p.PID, err)
	}
	defer pidfd.Close()
	err = writeFile(filepath.Join(h.Dir(cg), "cgroup.procs"), strconv.Itoa(p.PID))
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot move process %d: %w", p.PID, procfs.ErrNoProcess)
	}
	if isRemoved(err) {
		return fmt.Errorf("cannot move process %d into cgroup %s: %w", p.PID, cg, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("cannot move process %d into cgroup %s: %w", p.PID, cg, err)
	}
	return h.Verify(p, cg)
}

// Verify reads back that the process is in the cgroup or below it.
func (h Hierarchy) Verify(p Process, cg string) error {
	at, err := procfs.Cgroup(p.PID)
	if err != nil {
		return fmt.Errorf("cannot find process %d: %w", p.PID, err)
	}
	if start, err := procfs.Start(p.PID); err != nil || start != p.Start {
		return fmt.Errorf("cannot find process %d: %w", p.PID, procfs.ErrNoProcess)
	}
	if !Below(at, cg) {
		return fmt.Errorf("process %d is in %s instead of %s: %w", p.PID, at, cg, ErrWrongCgroup)
	}
	return nil
}

// Kill kills every process in the cgroup and below it, frozen ones too, and returns when it is empty. No such cgroup is
// no error.
func (h Hierarchy) Kill(ctx context.Context, cg string) error {
	err := writeFile(filepath.Join(h.Dir(cg), "cgroup.kill"), "1")
	if isRemoved(err) && h.Exists(cg) {
		// Kernels before 5.14 have no cgroup.kill.
		return killAll(ctx, func() ([]Process, error) { return h.Processes(cg) }, func() error {
			return KernelFreezer{Root: h.Mount}.Thaw(ctx, cg)
		})
	}
	if err != nil && !isRemoved(err) {
		return fmt.Errorf("cannot kill the processes of cgroup %s: %w", cg, err)
	}
	return h.WaitEmpty(ctx, cg)
}

// WaitEmpty returns when the cgroup and all below it hold no process, or are gone.
func (h Hierarchy) WaitEmpty(ctx context.Context, cg string) error {
	return waitNone(ctx, func() ([]Process, error) { return h.Processes(cg) })
}

// Remove removes the cgroup and all below it, all empty. No such cgroup is no error; ErrInUse when it holds a process.
func (h Hierarchy) Remove(cg string) error {
	dir := h.Dir(cg)
	entries, err := os.ReadDir(dir)
	if isRemoved(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot remove cgroup %s: %w", cg, err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := h.Remove(path.Join(cg, e.Name())); err != nil {
				return err
			}
		}
	}
	// A process that was killed leaves its cgroup a moment before the kernel counts it out.
	for deadline := time.Now().Add(removeWait); ; {
		err = unix.Rmdir(dir)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			break
		}
		if busy, perr := h.Populated(cg); perr != nil || busy {
			break
		}
		pause(pollPause)
	}
	switch {
	case err == nil, isRemoved(err):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("cannot remove cgroup %s: %w", cg, ErrInUse)
	default:
		return fmt.Errorf("cannot remove cgroup %s: %w", cg, err)
	}
}

// removeWait is how long an empty cgroup may refuse to be removed.
const removeWait = 100 * time.Millisecond

// Below tells whether a cgroup is another one or below it.
func Below(cg, top string) bool {
	if top == "/" {
		return strings.HasPrefix(cg, "/")
	}
	rest, ok := strings.CutPrefix(cg, top)
	return ok && (rest == "" || rest[0] == '/')
}

// isRemoved tells whether a cgroup file's error means that the cgroup is no more: a file open over the removal says ENODEV.
func isRemoved(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

func readPIDs(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if isRemoved(err) {
		return nil, fmt.Errorf("cgroup %s: %w", dir, ErrNotFound)
	}
	// A threaded cgroup does not list processes: they are listed by its domain.
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for line := range strings.Lines(string(b)) {
		// 0 stands for a process of another pid namespace: nothing that we could act upon.
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// readEvent reads one key of the cgroup's cgroup.events.
func readEvent(dir, key string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if isRemoved(err) {
		return "", fmt.Errorf("cgroup %s: %w", dir, ErrNotFound)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the events of cgroup %s: %w", dir, err)
	}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		if k == key {
			return v, nil
		}
	}
	return "", fmt.Errorf("cannot read the events of cgroup %s: no %q: %w", dir, key, ErrNotSupported)
}

// writeFile writes a cgroup's file. It never makes one: what is not there is not supported or not there any more.
func writeFile(name, value string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
