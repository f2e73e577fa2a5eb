package cgroup

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// PIDIndex maps the pids of all scopes to the ids of their scopes.
func (t *Tree) PIDIndex() map[int]string { return t.index.PIDIndex(t.h) }

// PIDIndex maps the pids in all registered cgroups and below them to scopes. Of nested scopes the innermost counts, as for
// ScopeOf. A cgroup that is removed during the read has no processes.
func (x *ScopeIndex) PIDIndex(h Hierarchy) map[int]string {
	x.mu.RLock()
	tops := make([]string, 0, len(x.ids))
	ids := make(map[string]string, len(x.ids))
	for cg, id := range x.ids {
		tops = append(tops, cg)
		ids[cg] = id
	}
	x.mu.RUnlock()
	// An outer path is shorter than the paths in it, so that the innermost scope is written last.
	slices.SortFunc(tops, func(a, b string) int { return len(a) - len(b) })
	out := map[int]string{}
	buf := make([]byte, 64<<10)
	for _, cg := range tops {
		id := ids[cg]
		listPIDs(unix.AT_FDCWD, h.Dir(cg), buf, func(pid int) { out[pid] = id })
	}
	return out
}

// listPIDs calls add for each process in the cgroup name of the open directory at, and in the cgroups below it.
func listPIDs(at int, name string, buf []byte, add func(pid int)) {
	dir, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // It was removed.
	}
	defer unix.Close(dir)
	if !readProcs(dir, buf, add) {
		return
	}
	// A cgroup's directory has dozens of files, and listing it costs more than everything else here. Its link count is the
	// number of subdirectories plus two, or one where the file system does not count.
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil || st.Nlink == 2 {
		return
	}
	if st.Nlink == 3 && unix.Faccessat(dir, inner, unix.F_OK, 0) == nil {
		listPIDs(dir, inner, buf, add) // As in every managed scope.
		return
	}
	for _, sub := range subdirs(dir) {
		listPIDs(dir, sub, buf, add)
	}
}

func subdirs(dir int) []string {
	// The listing needs a file offset of its own.
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	names, _ := childrenIn(fd) // Those that could be read.
	return names
}

// readProcs reads cgroup.procs of the open directory and reports whether the cgroup exists. The processes of a threaded
// cgroup are listed by its domain, which is read too.
func readProcs(dir int, buf []byte, add func(pid int)) bool {
	fd, err := unix.Openat(dir, "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	err = readNumbers(fd, buf, add)
	return err == nil || errors.Is(err, unix.EOPNOTSUPP)
}

// readNumbers reads an open file of numbers, one on each line. 0, a process of another pid namespace, is left out.
func readNumbers(fd int, buf []byte, add func(pid int)) error {
	var list numbers
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			list.end(add)
			return nil
		}
		list.add(buf[:n], add)
	}
}

// numbers reads a list of numbers, one a line, in parts.
type numbers struct{ pid int }

func (l *numbers) add(part []byte, add func(pid int)) {
	for _, c := range part {
		if c >= '0' && c <= '9' {
			l.pid = l.pid*10 + int(c-'0')
			continue
		}
		l.end(add)
	}
}

// end is the end of a line; the last one may lack it.
func (l *numbers) end(add func(pid int)) {
	if l.pid > 0 {
		add(l.pid)
	}
	l.pid = 0
}
