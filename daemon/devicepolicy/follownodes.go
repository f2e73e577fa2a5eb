package devicepolicy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/loop"
)

// nodeDirectories are those below /dev that have nodes of the driver or of a class of devices. They may appear later.
func nodeDirectories() []string { return []string{"nvidia-caps", "dri", "infiniband"} }

// ofInterest reports whether device rules may depend on a name in /dev.
func ofInterest(name string) bool {
	return strings.HasPrefix(name, "nvidia") || name == "fuse" || slices.Contains(nodeDirectories(), name)
}

// followNodes reports device nodes that come and go until ctx ends: a module that is loaded late makes some, and leases should open
// them soon. The converge loop finds what this misses.
func (pol *Policy) followNodes(ctx context.Context) {
	if pol.Changed == nil {
		return
	}
	for {
		err := pol.watchNodes(ctx)
		if ctx.Err() != nil {
			return
		}
		pol.Log.Debug("cannot follow the device nodes of the host", "error", err)
		if !loop.Pause(ctx, cdiIdle) {
			return
		}
	}
}

// watchNodes reads events until ctx ends or it fails.
func (pol *Policy) watchNodes(ctx context.Context) error {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot watch /dev: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	dev := filepath.Join(pol.HostRoot, "dev")
	const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	top, err := addWatch(f, dev, mask)
	if err != nil {
		return fmt.Errorf("cannot watch %s: %w", dev, err)
	}
	directories := func() {
		for _, name := range nodeDirectories() {
			// Most hosts lack one. A second watch of the same directory is the first one.
			_, _ = addWatch(f, filepath.Join(dev, name), mask)
		}
	}
	directories()
	b := make([]byte, 64<<10)
	for {
		n, err := f.Read(b)
		if err != nil {
			return fmt.Errorf("cannot watch %s: %w", dev, err)
		}
		if changed(b[:n], top) {
			directories()
			pol.Changed()
		}
	}
}

// addWatch does not use f.Fd, which would make reads of f block.
func addWatch(f *os.File, dir string, mask uint32) (watch int32, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	cerr := raw.Control(func(fd uintptr) { n, err = unix.InotifyAddWatch(int(fd), dir, mask) })
	return int32(n), errors.Join(cerr, err)
}

// changed reports whether one of the events is of interest: all are in a directory of nodes.
func changed(b []byte, top int32) bool {
	for len(b) >= unix.SizeofInotifyEvent {
		watch, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			return true
		}
		name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:end], "\x00"))
		b = b[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 || watch != top && mask&unix.IN_IGNORED == 0 || watch == top && ofInterest(name) {
			return true
		}
	}
	return false
}
