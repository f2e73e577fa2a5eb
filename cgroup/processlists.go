package cgroup

import (
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ProcessLists reads the processes of the same cgroups again and again. Each file is opened once: to find it by its path takes more
// time of the CPU than to read it. One goroutine uses it; the zero value is ready.
type ProcessLists struct {
	open  map[listKey]int // descriptors of cgroup.procs
	used  map[listKey]bool
	buf   [4096]byte
	opens int // how many files were opened
}

// listKey is a cgroup. Its directory as the key would be garbage of each reading.
type listKey struct{ mount, cg string }

// Direct is Hierarchy.Direct.
func (l *ProcessLists) Direct(h Hierarchy, cg string) (pids []int, err error) {
	key := listKey{h.Mount, cg}
	if l.open == nil {
		l.open, l.used = map[listKey]int{}, map[listKey]bool{}
	}
	l.used[key] = true
	fd, kept := l.open[key]
	if kept {
		if pids, err = l.read(fd); err == nil {
			return pids, nil
		}
		l.forget(key) // There may be another cgroup of that name.
	}
	dir := h.Dir(cg)
	if fd, err = unix.Open(filepath.Join(dir, "cgroup.procs"), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		l.open[key] = fd
		l.opens++
		pids, err = l.read(fd)
	}
	if isRemoved(err) {
		l.forget(key)
	}
	return listed(dir, pids, err)
}

// read reads a whole list. The calls do not block: the kernel makes the list without waiting for a process.
func (l *ProcessLists) read(fd int) (pids []int, err error) {
	at, list := 0, numbers{}
	for {
		n, _, failed := unix.RawSyscall6(
			unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&l.buf)), uintptr(len(l.buf)), uintptr(at), 0, 0,
		)
		switch {
		case failed == unix.EINTR:
			continue
		case failed != 0:
			return nil, failed
		case n == 0:
			list.end(func(pid int) { pids = append(pids, pid) })
			return pids, nil
		}
		list.add(l.buf[:n], func(pid int) { pids = append(pids, pid) })
		at += int(n)
	}
}

// CloseOthers closes the files of the cgroups that were not read since it was called last.
func (l *ProcessLists) CloseOthers() {
	for key := range l.open {
		if !l.used[key] {
			l.forget(key)
		}
	}
	clear(l.used)
}

func (l *ProcessLists) forget(key listKey) {
	if fd, ok := l.open[key]; ok {
		unix.Close(fd)
		delete(l.open, key)
	}
}
