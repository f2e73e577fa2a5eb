package descent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// hierarchy is the name of the hierarchy. All daemons of a host use the same one.
const hierarchy = "gpushare"

// Record is the record of one daemon. A nil Record records nothing.
type Record struct {
	mount *os.File // keeps a mount of its own; nil when the host has mounted the hierarchy
	top   string   // the directory of the whole hierarchy
	dir   string   // that of this daemon's leases

	quick   *os.File // see quickenMoves
	WhySlow error    // why moves into cgroups take long on a busy host; nil: they do not
}

// Open opens the record of the daemon whose cgroups have this name. A hierarchy that is mounted already is used: the sandbox of
// the service does not allow to mount. It fails without root, and with a kernel that was started with cgroup_no_v1=named.
func Open(name string) (r *Record, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot record which processes descend from those of a lease: %w", errors.Join(err, r.Close()))
		}
	}()
	mounts, _, err := boundedread.TrustedPrefix("/proc/self/mountinfo", boundedread.Mounts)
	if err != nil {
		return nil, err
	}
	r = &Record{}
	if top, ok := findMount(string(mounts)); ok {
		r.top = top
	} else if r.mount, err = mountCgroups(hierarchy); err != nil {
		return r, err
	} else {
		r.top = fmt.Sprint("/proc/self/fd/", r.mount.Fd())
	}
	r.quick, r.WhySlow = quickenMoves(string(mounts))
	// The mount of the host has the mode 0755: others need not list the leases.
	if err = os.Chmod(r.top, 0o700); err != nil {
		return r, err
	}
	r.dir = filepath.Join(r.top, name)
	return r, mkdir(r.dir)
}

// findMount finds the mount of the whole hierarchy in a mountinfo file (proc_pid_mountinfo(5)).
func findMount(mountinfo string) (string, bool) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		at, kind := strings.Fields(before), strings.Fields(after)
		if len(at) < 5 || len(kind) < 3 || kind[0] != "cgroup" || at[3] != "/" {
			continue
		}
		for option := range strings.SplitSeq(kind[2], ",") {
			if option == "name="+hierarchy {
				return at[4], true
			}
		}
	}
	return "", false
}

// Close ends the use of the record. What is recorded stays.
func (r *Record) Close() error {
	if r == nil {
		return nil
	}
	_ = unix.Rmdir(r.dir) // It fails while a lease is recorded.
	var err error
	for _, f := range []*os.File{r.mount, r.quick} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// Add records a process, and what it starts from now on. undo records it as before.
func (r *Record) Add(lease string, pid int) (undo func() error, err error) {
	if r == nil {
		return func() error { return nil }, nil
	}
	before, err := r.of(pid)
	if err != nil {
		return nil, fmt.Errorf("cannot record pid %d: %w", pid, err)
	}
	undo = func() error { return r.move(lease, before) }
	if err := mkdir(r.cgroup(lease)); err != nil {
		return nil, fmt.Errorf("cannot record pid %d: %w", pid, err)
	}
	if err := place(r.cgroup(lease), pid); err != nil {
		return nil, fmt.Errorf("cannot record pid %d: %w", pid, errors.Join(err, undo()))
	}
	return undo, nil
}

// of returns the directory that a process is recorded in.
func (r *Record) of(pid int) (string, error) {
	b, _, err := boundedread.OfProcess(pid, "cgroup", boundedread.Process)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if _, cg, ok := strings.Cut(line, ":name="+hierarchy+":"); ok {
			return filepath.Join(r.top, path.Clean(strings.TrimSuffix(cg, "\n"))), nil
		}
	}
	return r.top, nil
}

// Release forgets a lease and its processes.
func (r *Record) Release(lease string) error {
	if r == nil {
		return nil
	}
	return r.move(lease, r.top)
}

// move moves all processes of a lease, with what they start meanwhile, and removes its cgroup.
func (r *Record) move(lease, to string) error {
	const rounds = 100 // Each round moves what was started during the one before.
	for range rounds {
		pids, err := r.Processes(lease)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if err := place(to, pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("cannot end the record of lease %s: %w", lease, err)
			}
		}
		if removed, err := r.Remove(lease); removed || err != nil {
			return err
		}
	}
	return fmt.Errorf("cannot end the record of lease %s: its processes start others without end", lease)
}

// Remove removes the cgroup of a lease without processes. removed: there is none any more.
func (r *Record) Remove(lease string) (removed bool, err error) {
	if r == nil {
		return true, nil
	}
	err = unix.Rmdir(r.cgroup(lease))
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.EBUSY):
		return false, nil
	}
	return false, fmt.Errorf("cannot remove the record of lease %s: %w", lease, err)
}

// Processes lists the processes of a lease and all that descend from them, wherever they are, in ascending order.
func (r *Record) Processes(lease string) ([]int, error) {
	if r == nil {
		return nil, nil
	}
	b, err := boundedread.Trusted(filepath.Join(r.cgroup(lease), procs), boundedread.IDs)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil // It was removed.
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of lease %s: %w", lease, err)
	}
	var pids []int
	for line := range strings.Lines(string(b)) {
		pid, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("cannot read the record of lease %s: %w", lease, err)
		}
		if pid > 0 { // 0 is a process of another pid namespace.
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// Leases lists the leases that have a record, also those of earlier daemons.
func (r *Record) Leases() ([]string, error) {
	if r == nil {
		return nil, nil
	}
	entries, _, err := boundedread.Entries(r.dir, boundedread.Files)
	if err != nil {
		return nil, fmt.Errorf("cannot list the recorded leases: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// procs lists the processes of a cgroup, and takes those that are written to it.
const procs = "cgroup.procs"

func (r *Record) cgroup(lease string) string { return filepath.Join(r.dir, lease) }

func place(dir string, pid int) error {
	return os.WriteFile(filepath.Join(dir, procs), []byte(strconv.Itoa(pid)), 0) // The kernel has created the file.
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
