package cgroup

import (
	"bytes"
	"context"
	"encoding/binary"
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

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// Hierarchy is the mounted cgroup v2 hierarchy. Its methods take cgroup paths as in /proc/PID/cgroup; "/" is the root. They
// read, move processes and kill, and set no limits: these belong to the manager of the cgroup.
type Hierarchy struct {
	Mount string // absolute, "/sys/fs/cgroup" on most hosts
}

// FindHierarchy finds the cgroup v2 hierarchy in this process's mounts. ErrNotSupported when there is none.
func FindHierarchy() (Hierarchy, error) {
	b, _, err := boundedread.TrustedPrefix("/proc/self/mountinfo", boundedread.Mounts)
	if err != nil {
		return Hierarchy{}, fmt.Errorf("cannot find the cgroup v2 hierarchy: %w", err)
	}
	mount, ok := findMount(string(b))
	if !ok {
		return Hierarchy{}, fmt.Errorf("cannot find the cgroup v2 hierarchy: none is mounted: %w", ErrNotSupported)
	}
	return Hierarchy{Mount: mount}, nil
}

// findMount finds the mount of the whole hierarchy in a mountinfo file (proc_pid_mountinfo(5)). A mount of a subtree is not
// enough, because paths in /proc/PID/cgroup are relative to the root.
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

// unescapeMount decodes the kernel's octal escapes of space, tab, newline and backslash.
func unescapeMount(s string) string {
	for _, e := range []struct{ code, char string }{{`\040`, " "}, {`\011`, "\t"}, {`\012`, "\n"}, {`\134`, `\`}} {
		s = strings.ReplaceAll(s, e.code, e.char)
	}
	return s
}

// Dir is the directory of a cgroup.
func (h Hierarchy) Dir(cg string) string { return filepath.Join(h.Mount, cg) }

// Exists reports whether there is such a cgroup.
func (h Hierarchy) Exists(cg string) bool {
	fi, err := os.Stat(h.Dir(cg))
	return err == nil && fi.IsDir()
}

// ID is the number of a cgroup, which no other cgroup has as long as it exists; 0 when there is no such cgroup.
func (h Hierarchy) ID(cg string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(h.Dir(cg), &st); err != nil {
		return 0
	}
	return st.Ino
}

// Writable reports whether this process may create cgroups in the hierarchy.
func (h Hierarchy) Writable() bool { return unix.Access(h.Mount, unix.W_OK) == nil }

// Controllers lists the controllers of the hierarchy.
func (h Hierarchy) Controllers() ([]string, error) {
	b, err := boundedread.Trusted(filepath.Join(h.Mount, "cgroup.controllers"), boundedread.Value)
	if err != nil {
		return nil, fmt.Errorf("cannot read the controllers of %s: %w", h.Mount, err)
	}
	return strings.Fields(string(b)), nil
}

// Populated reports whether the cgroup or one below it contains a process. ErrNotFound when there is no such cgroup.
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

// Children lists the direct children of a cgroup, in ascending order. ErrNotFound when there is no such cgroup.
func (h Hierarchy) Children(cg string) ([]string, error) {
	// Most cgroups have no child, and dozens of files. A link count of 2 means no child, without a listing.
	var st unix.Stat_t
	if err := unix.Stat(h.Dir(cg), &st); err == nil && st.Nlink == 2 {
		return nil, nil
	}
	names, err := readChildren(h.Dir(cg))
	if isRemoved(err) {
		return nil, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list cgroup %s: %w", cg, err)
	}
	for i := range names {
		names[i] = path.Join(cg, names[i])
	}
	return names, nil
}

// readChildren lists the directories in a directory of the hierarchy, in ascending order. It uses system calls directly: the slices
// of all grants are listed each second, and package os would make an object for each of dozens of files. Cgroups always report the
// type of an entry.
func readChildren(dir string) (names []string, err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return childrenIn(fd)
}

// mostChildren is how many cgroups may be in one: a user makes as many as they like in a part of the hierarchy that is theirs.
const mostChildren = boundedread.Files

var errManyChildren = fmt.Errorf("it has more than %d cgroups: %w", mostChildren, boundedread.ErrTooLarge)

// childrenIn lists the directories in an open one.
func childrenIn(fd int) (names []string, err error) {
	var buf [4096]byte
	for {
		n, err := unix.Getdents(fd, buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 || err != nil {
			slices.Sort(names)
			return names, err
		}
		if len(names) >= mostChildren {
			return names, errManyChildren
		}
		for b := buf[:n]; len(b) > 0; { // See struct linux_dirent64 in getdents(2).
			length := int(binary.NativeEndian.Uint16(b[16:]))
			name, _, _ := bytes.Cut(b[19:length], []byte{0})
			if b[18] == unix.DT_DIR && string(name) != "." && string(name) != ".." {
				names = append(names, string(name))
			}
			b = b[length:]
		}
	}
}

// MemoryNodes are the NUMA nodes that the cgroup's memory comes from, as "0-1"; empty when not restricted.
func (h Hierarchy) MemoryNodes(cg string) string {
	b, err := boundedread.Trusted(filepath.Join(h.Dir(cg), "cpuset.mems"), boundedread.Value)
	if err != nil {
		return "" // the controller is not enabled
	}
	return strings.TrimSpace(string(b))
}

// Direct lists the pids in the cgroup itself, not in those below it.
func (h Hierarchy) Direct(cg string) ([]int, error) { return readPIDs(h.Dir(cg)) }

func (h Hierarchy) pids(cg string) ([]int, error) {
	all, err := readPIDs(h.Dir(cg))
	if err != nil {
		return nil, err
	}
	below, err := h.Children(cg)
	if err != nil {
		return nil, err
	}
	for _, child := range below {
		pids, err := h.pids(child)
		if err != nil && !errors.Is(err, ErrNotFound) { // It was removed meanwhile.
			return nil, err
		}
		all = append(all, pids...)
	}
	return all, nil
}

// Place moves the process into the cgroup and reads back that it is there. ErrWrongCgroup when it is in another cgroup
// afterwards; procfs.ErrNoProcess when it has exited. It never leaves another process there, unless its error says so.
func (h Hierarchy) Place(p Process, cg string) error { return h.move(p, cg, writeFile, 0) }

// writer writes a file of a cgroup. Tests put a reuse of the pid before or after it.
type writer func(name, value string) error

func (h Hierarchy) move(p Process, cg string, write writer, depth int) error {
	pidfd, err := procfs.OpenPidfd(p.PID, p.Start)
	if err != nil {
		return fmt.Errorf("cannot move pid %d: %w", p.PID, err)
	}
	defer pidfd.Close()
	err = write(filepath.Join(h.Dir(cg), "cgroup.procs"), strconv.Itoa(p.PID))
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot move pid %d: %w", p.PID, procfs.ErrNoProcess)
	}
	if isRemoved(err) {
		return fmt.Errorf("cannot move pid %d into cgroup %s: %w", p.PID, cg, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("cannot move pid %d into cgroup %s: %w", p.PID, cg, err)
	}
	// The file takes a number, and an open pidfd does not reserve it: after the process was reaped another one may have got
	// it. If it is not reaped now, it had its number at the write.
	if errors.Is(pidfd.Signal(context.Background(), 0), procfs.ErrNoProcess) {
		if depth >= maxReuses {
			return fmt.Errorf("cannot move pid %d into cgroup %s: the pid was reused %d times meanwhile", p.PID, cg, depth)
		}
		if err := h.takeOut(p, cg, write, depth); err != nil {
			return err
		}
		return fmt.Errorf("cannot move pid %d: %w", p.PID, procfs.ErrNoProcess)
	}
	return h.Verify(p, cg)
}

// Verify reads back that the process is in the cgroup or below it. ErrWrongCgroup when it is not.
func (h Hierarchy) Verify(p Process, cg string) error {
	at, err := procfs.Cgroup(p.PID)
	if err != nil {
		return fmt.Errorf("cannot find pid %d: %w", p.PID, err)
	}
	if start, err := procfs.Start(p.PID); err != nil || start != p.Start {
		return fmt.Errorf("cannot find pid %d: %w", p.PID, procfs.ErrNoProcess)
	}
	if !Below(at, cg) {
		return fmt.Errorf("pid %d is in %s instead of %s: %w", p.PID, at, cg, ErrWrongCgroup)
	}
	return nil
}

// Kill kills every process in the cgroup and below it, also frozen ones, and returns when it is empty. A missing cgroup is
// no error. When ctx ends first, processes that were killed are left: they hang in a call of the kernel, or a tracer keeps
// them in their exit.
func (h Hierarchy) Kill(ctx context.Context, cg string) error {
	err := writeFile(filepath.Join(h.Dir(cg), "cgroup.kill"), "1")
	send := killLeft(sigkill)
	var afterRound func() error
	switch {
	case isRemoved(err) && h.Exists(cg):
		// Kernels before 5.14 have no cgroup.kill.
		send = sigkill
		afterRound = func() error { return KernelFreezer{Root: h.Mount}.Thaw(ctx, cg) }
	case err != nil && !isRemoved(err):
		return fmt.Errorf("cannot kill the processes of cgroup %s: %w", cg, err)
	}
	// The kernel sends that signal to the first thread of each process. A process whose first thread has exited does not get
	// it (seen on Linux 6.18), and may fork.
	if err := killAll(ctx, func() ([]Process, error) { return h.Processes(cg) }, send, afterRound); err != nil {
		return err
	}
	return h.WaitEmpty(ctx, cg)
}

// WaitEmpty returns when the cgroup and all below it are empty or removed.
func (h Hierarchy) WaitEmpty(ctx context.Context, cg string) error {
	inside := func(p Process) bool {
		at, err := procfs.Cgroup(p.PID)
		return err == nil && Below(at, cg)
	}
	for {
		if err := waitNone(ctx, func() ([]Process, error) { return h.Processes(cg) }, inside); err != nil {
			return err
		}
		// The last threads of a process are not listed when its first one has exited, and may still release its memory and
		// its devices.
		busy, err := h.Populated(cg)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil || !busy {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("a process still exits: %w", ctx.Err())
		}
		pause(time.Millisecond)
	}
}

// Remove removes the empty cgroup and all empty ones below it. A missing cgroup is no error. ErrInUse when one contains a
// process.
func (h Hierarchy) Remove(cg string) error {
	dir := h.Dir(cg)
	entries, _, err := boundedread.Entries(dir, boundedread.Files)
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
	// A killed process leaves cgroup.procs shortly before the kernel allows the removal of the cgroup.
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

// removeWait bounds the wait until the kernel allows the removal of an empty cgroup.
const removeWait = 100 * time.Millisecond

// Below reports whether the cgroup is top or below it.
func Below(cg, top string) bool {
	if top == "/" {
		return strings.HasPrefix(cg, "/")
	}
	rest, ok := strings.CutPrefix(cg, top)
	return ok && (rest == "" || rest[0] == '/')
}

// isRemoved reports whether an error means that the cgroup was removed: a file that was open during the removal returns
// ENODEV.
func isRemoved(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// readPIDs reads cgroup.procs. It uses system calls directly: the lists of all leases are read each second, and package os would
// register each file for events.
func readPIDs(dir string) ([]int, error) {
	fd, err := unix.Open(filepath.Join(dir, "cgroup.procs"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	var pids []int
	if err == nil {
		var buf [4096]byte
		err = readNumbers(fd, buf[:], func(pid int) { pids = append(pids, pid) })
		unix.Close(fd)
	}
	return listed(dir, pids, err)
}

// listed is the result of a reading of cgroup.procs.
func listed(dir string, pids []int, err error) ([]int, error) {
	switch {
	case isRemoved(err):
		return nil, fmt.Errorf("cgroup %s: %w", dir, ErrNotFound)
	case errors.Is(err, unix.EOPNOTSUPP): // The processes of a threaded cgroup are listed by its domain.
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read cgroup.procs of %s: %w", dir, err)
	}
	return pids, nil
}

// readEvent reads one key of the cgroup's cgroup.events.
func readEvent(dir, key string) (string, error) {
	b, err := boundedread.Trusted(filepath.Join(dir, "cgroup.events"), boundedread.Value)
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

// writeFile writes a cgroup's file. It never creates one: a missing file is not supported or was removed.
func writeFile(name, value string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
