package cgroup

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// PIDIndex lists the processes of all scopes.
func (t *Tree) PIDIndex() map[int]string { return t.index.PIDIndex(t.h) }

// PIDIndex lists the processes of all registered cgroups and those below them. A process in nested ones is the innermost's,
// as for Owner. A cgroup that goes while it is read has nobody.
func (x *ScopeIndex) PIDIndex(h Hierarchy) map[int]string {
	x.mu.RLock()
	tops := make([]string, 0, len(x.ids))
	ids := make(map[string]string, len(x.ids))
	for cg, id := range x.ids {
		tops = append(tops, cg)
		ids[cg] = id
	}
	x.mu.RUnlock()
	// An outer path is shorter than the paths in it: what is inside comes later, and wins.
	slices.SortFunc(tops, func(a, b string) int { return len(a) - len(b) })
	out := map[int]string{}
	buf := make([]byte, 64<<10)
	for _, cg := range tops {
		id := ids[cg]
		listPIDs(unix.AT_FDCWD, h.Dir(cg), buf, func(pid int) { out[pid] = id })
	}
	return out
}

// listPIDs calls take for each process in the cgroup that is named below the open directory at, and those below it.
func listPIDs(at int, name string, buf []byte, add func(pid int)) {
	dir, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // It is gone.
	}
	defer unix.Close(dir)
	if !readProcs(dir, buf, add) {
		return
	}
	// A cgroup's directory has dozens of files, and reading it costs more than all else. Its number of links counts the
	// folders: two more than there are, or one where the file system does not count.
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil || st.Nlink == 2 {
		return
	}
	if st.Nlink == 3 && unix.Faccessat(dir, inner, unix.F_OK, 0) == nil {
		listPIDs(dir, inner, buf, add) // As every scope of ours.
		return
	}
	for _, sub := range subdirs(dir) {
		listPIDs(dir, sub, buf, add)
	}
}

func subdirs(dir int) []string {
	// The listing moves a descriptor of its own.
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "cgroup")
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}

// readProcs reads cgroup.procs of the open directory. It tells whether the cgroup is there: one that is threaded lists
// its processes in its domain, which is looked at too.
func readProcs(dir int, buf []byte, add func(pid int)) bool {
	fd, err := unix.Openat(dir, "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	pid := 0
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return errors.Is(err, unix.EOPNOTSUPP)
		case n == 0:
			return true
		}
		for _, c := range buf[:n] {
			if c >= '0' && c <= '9' {
				pid = pid*10 + int(c-'0')
				continue
			}
			if pid > 0 { // 0 stands for a process of another pid namespace.
				add(pid)
			}
			pid = 0
		}
	}
}
