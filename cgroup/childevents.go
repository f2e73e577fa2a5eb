package cgroup

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ChildEvents reports which cgroups got or lost a child, so that those of hundreds of cgroups need not be listed each second. It reads
// the kernel's events when it is asked and has no goroutine. One goroutine uses it; the zero value is ready, Close ends it.
type ChildEvents struct {
	inotify int               // 0: not open
	watches map[int32]string  // directories
	dirs    map[string]*child // by directory
}

// child is a directory that is watched.
type child struct {
	watch   int32
	direct  bool // by Changed, and not only for one below it
	changed bool
}

// Begin reads what has happened since it was called last. After an error Changed is always true.
func (e *ChildEvents) Begin() error {
	if e.inotify == 0 {
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			return fmt.Errorf("cannot watch cgroups: %w", os.NewSyscallError("inotify_init1", err))
		}
		e.inotify, e.watches, e.dirs = fd, map[int32]string{}, map[string]*child{}
	}
	var buf [4096]byte
	for {
		// It does not block, so the Go runtime need not know of it.
		n, _, failed := unix.RawSyscall(unix.SYS_READ, uintptr(e.inotify), uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)))
		switch {
		case failed == unix.EINTR:
			continue
		case failed == unix.EAGAIN:
			return nil
		case failed != 0:
			e.Close()
			return fmt.Errorf("cannot watch cgroups: %w", os.NewSyscallError("read", failed))
		}
		e.take(buf[:n])
	}
}

func (e *ChildEvents) take(events []byte) {
	for len(events) >= unix.SizeofInotifyEvent {
		watch := int32(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint32(events[4:])
		size := min(unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(events[12:])), len(events))
		name := string(bytes.TrimRight(events[unix.SizeofInotifyEvent:size], "\x00"))
		events = events[size:]
		dir, ok := e.watches[watch]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			e.forgetBelow("")
		case !ok:
		case name == "":
			e.forgetBelow(dir) // The watch has ended.
		default:
			e.dirs[dir].changed = true
			e.forgetBelow(dir + "/" + name)
		}
	}
}

// forgetBelow ends the watches of a directory that was removed or created, and of those below it: the kernel does not report the removal
// of a cgroup to its own watch, and another one may have its name now.
func (e *ChildEvents) forgetBelow(top string) {
	for dir, d := range e.dirs {
		if top == "" || dir == top || strings.HasPrefix(dir, top+"/") {
			e.forget(dir, d)
		}
	}
}

func (e *ChildEvents) forget(dir string, d *child) {
	_, _ = unix.InotifyRmWatch(e.inotify, uint32(d.watch)) // It may have ended with the directory.
	delete(e.watches, d.watch)
	delete(e.dirs, dir)
}

// Changed reports whether a cgroup may have other children than when Changed was called for it last: also the first time, and where
// it cannot be watched.
func (e *ChildEvents) Changed(h Hierarchy, cg string) bool {
	if e.inotify == 0 {
		return true
	}
	dir := h.Dir(cg)
	if d := e.dirs[dir]; d != nil && d.direct {
		changed := d.changed
		d.changed = false
		return changed
	}
	// Those above it first: none is removed between its watch and that of its parent without an event.
	for i := len(h.Mount); i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		if !e.watch(dir[:i]) {
			return true
		}
	}
	e.dirs[dir].direct, e.dirs[dir].changed = true, false
	return true
}

func (e *ChildEvents) watch(dir string) bool {
	if e.dirs[dir] != nil {
		return true
	}
	const events = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	watch, err := unix.InotifyAddWatch(e.inotify, dir, events)
	if err != nil {
		return false
	}
	if other, ok := e.watches[int32(watch)]; ok && other != dir {
		delete(e.dirs, other) // The directory had another name.
	}
	e.watches[int32(watch)], e.dirs[dir] = dir, &child{watch: int32(watch)}
	return true
}

// Retain ends the watches of the cgroups that are not in the list, nor above one.
func (e *ChildEvents) Retain(h Hierarchy, cgs map[string]bool) {
	if len(e.dirs) == 0 {
		return
	}
	keep := map[string]bool{}
	for cg := range cgs {
		for dir := h.Dir(cg); len(dir) >= len(h.Mount) && !keep[dir]; dir = filepath.Dir(dir) {
			keep[dir] = true
		}
	}
	for dir, d := range e.dirs {
		if !keep[dir] {
			e.forget(dir, d)
		}
	}
}

// Close ends all watches. Begin starts them again.
func (e *ChildEvents) Close() {
	if e.inotify != 0 {
		unix.Close(e.inotify)
	}
	*e = ChildEvents{}
}
