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

// cgroupWatcher tell those who wait for the end of a cgroup that it is worth looking again: its events file changed, or it was
// removed. The kernel tells both late or not at all when they come together within 10 ms, so a ring is a hint and
// whoever waits also looks by himself now and then. All share one descriptor, of which a host has few; it and its
// goroutine are there only while somebody waits. The zero value is ready.
type cgroupWatcher struct {
	mu      sync.Mutex // guards what follows
	f       *os.File   // nil while nobody waits
	watches map[*cgroupWatch]bool
}

// cgroupWatch is one waiter's.
type cgroupWatch struct {
	event       chan struct{}
	eventsWatch int32 // the watch on the cgroup's events file
	parentWatch int32 // the watch on the folder that it is in
	name        string
}

// add hangs a bell at the cgroup's directory. ErrNotFound when it is gone. off takes it down.
func (c *cgroupWatcher) add(dir string) (event <-chan struct{}, remove func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.f == nil {
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot watch %s: %w", dir, err)
		}
		c.f, c.watches = os.NewFile(uintptr(fd), "inotify"), map[*cgroupWatch]bool{}
		go c.readEvents(c.f) // ends when the last bell is taken down
	}
	n := &cgroupWatch{event: make(chan struct{}, 1), name: path.Base(dir)}
	n.parentWatch, err = c.watchLocked(filepath.Dir(dir), unix.IN_DELETE|unix.IN_ONLYDIR)
	if err == nil {
		n.eventsWatch, err = c.watchLocked(filepath.Join(dir, "cgroup.events"), unix.IN_MODIFY)
	}
	if err != nil {
		c.removeUnusedLocked(n)
		if isRemoved(err) {
			err = ErrNotFound
		}
		return nil, nil, fmt.Errorf("cannot watch %s: %w", dir, err)
	}
	c.watches[n] = true
	return n.event, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watches, n)
		c.removeUnusedLocked(n)
	}, nil
}

func (c *cgroupWatcher) watchLocked(file string, mask uint32) (watch int32, err error) {
	raw, err := c.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var added int
	if cerr := raw.Control(func(fd uintptr) { added, err = unix.InotifyAddWatch(int(fd), file, mask) }); cerr != nil {
		return 0, cerr
	}
	return int32(added), err
}

// removeUnusedLocked takes away the watches that only this bell had, and everything when nobody waits any more.
func (c *cgroupWatcher) removeUnusedLocked(removed *cgroupWatch) {
	if len(c.watches) == 0 {
		_ = c.f.Close() // the listener ends with it
		c.f = nil
		return
	}
	used := func(w int32) bool {
		for n := range c.watches {
			if n.eventsWatch == w || n.parentWatch == w {
				return true
			}
		}
		return false
	}
	raw, err := c.f.SyscallConn()
	if err != nil {
		return
	}
	for _, w := range []int32{removed.eventsWatch, removed.parentWatch} {
		if w > 0 && !used(w) {
			_ = raw.Control(func(fd uintptr) {
				_, _ = unix.InotifyRmWatch(int(fd), uint32(w)) // the file's end may have taken it already
			})
		}
	}
}

// readEvents rings for each notification until the descriptor is closed.
func (c *cgroupWatcher) readEvents(f *os.File) {
	buf := make([]byte, 16<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				c.notify(-1, "") // whoever waits looks by himself from here on
			}
			return
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			watch := int32(binary.NativeEndian.Uint32(rest))
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
			if size > len(rest) {
				break
			}
			c.notify(watch, string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:size], "\x00")))
			rest = rest[size:]
		}
	}
}

// notify tells those whom a notification is for; watch -1, which also stands for lost notifications, is for all.
func (c *cgroupWatcher) notify(watch int32, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.watches {
		if watch == -1 || n.eventsWatch == watch || n.parentWatch == watch && n.name == name {
			select {
			case n.event <- struct{}{}:
			default: // it has not looked yet
			}
		}
	}
}
