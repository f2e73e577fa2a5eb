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

// cgroupWatcher notifies goroutines that wait for the end of a cgroup when its cgroup.events changes or when it is removed.
// The kernel reports these late, or not at all when both happen within 10 ms. An event is therefore a hint, and the
// waiting goroutine also polls. All watches share one inotify descriptor, because a host has few; the descriptor and its
// goroutine exist only while there is a watch. The zero value is ready.
type cgroupWatcher struct {
	mu      sync.Mutex // guards what follows
	f       *os.File   // nil without watches
	watches map[*cgroupWatch]bool
}

// cgroupWatch is the watch of one goroutine on one cgroup.
type cgroupWatch struct {
	event       chan struct{}
	eventsWatch int32 // on the cgroup's cgroup.events
	parentWatch int32 // on the directory that contains the cgroup
	name        string
}

// add watches the cgroup's directory until remove is called. ErrNotFound when the directory is missing.
func (c *cgroupWatcher) add(dir string) (event <-chan struct{}, remove func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.f == nil {
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot watch %s: %w", dir, err)
		}
		c.f, c.watches = os.NewFile(uintptr(fd), "inotify"), map[*cgroupWatch]bool{}
		go c.readEvents(c.f) // ends when the last watch is removed
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

// removeUnusedLocked removes the inotify watches that only the removed watch used, and the descriptor after the last one.
func (c *cgroupWatcher) removeUnusedLocked(removed *cgroupWatch) {
	if len(c.watches) == 0 {
		_ = c.f.Close() // this ends readEvents
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
				_, _ = unix.InotifyRmWatch(int(fd), uint32(w)) // the removal of the file may have removed it already
			})
		}
	}
}

// readEvents handles the kernel's notifications until the descriptor is closed.
func (c *cgroupWatcher) readEvents(f *os.File) {
	buf := make([]byte, 16<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				c.notify(-1, "") // from here on the waiting goroutines only poll
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

// notify sends the event to the watches that it concerns. Watch -1 means all; the kernel uses it for lost notifications.
func (c *cgroupWatcher) notify(watch int32, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.watches {
		if watch == -1 || n.eventsWatch == watch || n.parentWatch == watch && n.name == name {
			select {
			case n.event <- struct{}{}:
			default: // the previous event is not read yet
			}
		}
	}
}
