package cgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// bells tell those who wait for the end of a cgroup that it is worth looking again: its events file changed, or it was
// removed. The kernel tells both late or not at all when they come together within 10 ms, so a ring is a hint and
// whoever waits also looks by himself now and then. All share one descriptor, of which a host has few; it and its
// goroutine are there only while somebody waits. The zero value is ready.
type bells struct {
	mu  sync.Mutex // guards what follows
	f   *os.File   // nil while nobody waits
	all map[*bell]bool
}

// bell is one waiter's.
type bell struct {
	rung   chan struct{}
	events int32 // the watch on the cgroup's events file
	parent int32 // the watch on the folder that it is in
	name   string
}

// hang hangs a bell at the cgroup's directory. ErrNotFound when it is gone. off takes it down.
func (b *bells) hang(dir string) (rung <-chan struct{}, off func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.f == nil {
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot watch %s: %w", dir, err)
		}
		b.f, b.all = os.NewFile(uintptr(fd), "inotify"), map[*bell]bool{}
		go b.listen(b.f) // ends when the last bell is taken down
	}
	n := &bell{rung: make(chan struct{}, 1), name: path.Base(dir)}
	n.parent, err = b.watchLocked(filepath.Dir(dir), unix.IN_DELETE|unix.IN_ONLYDIR)
	if err == nil {
		n.events, err = b.watchLocked(filepath.Join(dir, "cgroup.events"), unix.IN_MODIFY)
	}
	if err != nil {
		b.tidyLocked(n)
		if gone(err) {
			err = ErrNotFound
		}
		return nil, nil, fmt.Errorf("cannot watch %s: %w", dir, err)
	}
	b.all[n] = true
	return n.rung, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.all, n)
		b.tidyLocked(n)
	}, nil
}

func (b *bells) watchLocked(file string, mask uint32) (watch int32, err error) {
	raw, err := b.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var added int
	if cerr := raw.Control(func(fd uintptr) { added, err = unix.InotifyAddWatch(int(fd), file, mask) }); cerr != nil {
		return 0, cerr
	}
	return int32(added), err
}

// tidyLocked takes away the watches that only this bell had, and everything when nobody waits any more.
func (b *bells) tidyLocked(gone *bell) {
	if len(b.all) == 0 {
		_ = b.f.Close() // the listener ends with it
		b.f = nil
		return
	}
	used := func(w int32) bool {
		for n := range b.all {
			if n.events == w || n.parent == w {
				return true
			}
		}
		return false
	}
	raw, err := b.f.SyscallConn()
	if err != nil {
		return
	}
	for _, w := range []int32{gone.events, gone.parent} {
		if w > 0 && !used(w) {
			_ = raw.Control(func(fd uintptr) {
				_, _ = unix.InotifyRmWatch(int(fd), uint32(w)) // the file's end may have taken it already
			})
		}
	}
}

// listen rings for each notification until the descriptor is closed.
func (b *bells) listen(f *os.File) {
	buf := make([]byte, 16<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				b.ring(-1, "") // whoever waits looks by himself from here on
			}
			return
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			watch := int32(binary.NativeEndian.Uint32(rest))
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
			if size > len(rest) {
				break
			}
			b.ring(watch, string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:size], "\x00")))
			rest = rest[size:]
		}
	}
}

// ring tells those whom a notification is for; watch -1, which also stands for lost notifications, is for all.
func (b *bells) ring(watch int32, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := range b.all {
		if watch == -1 || n.events == watch || n.parent == watch && n.name == name {
			select {
			case n.rung <- struct{}{}:
			default: // it has not looked yet
			}
		}
	}
}
