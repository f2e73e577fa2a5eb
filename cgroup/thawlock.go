package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// lockFile is locked by gpushare-thaw while it runs. It has its pid and the time of its last pass: a stopped process keeps
// its lock, and only the time shows that it does not run.
const lockFile = "thaw.lock"

// takeLock takes the thaw lock until the file is closed. It is a lock of the open file description, so that readLock can
// query it without taking it.
func takeLock(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, errors.New("another gpushare-thaw has locked it")
		}
		return nil, err
	}
	return f, nil
}

// writePass writes the time of a pass into the lock file.
func writePass(f *os.File, at time.Duration) error {
	_, err := f.WriteAt(fmt.Appendf(nil, "%010d %020d\n", os.Getpid(), at), 0)
	return err
}

// lockState is what a daemon knows of gpushare-thaw.
type lockState struct {
	held bool
	pass time.Duration // of CLOCK_BOOTTIME
}

// recent reports whether gpushare-thaw has made a pass lately.
func (l lockState) recent(now time.Duration) bool { return l.held && now-l.pass < passTimeout }

// lockReader reads the state of the lock again and again. It keeps the file open: while scopes are frozen it is read five times a second.
// The zero value is ready but for the name.
type lockReader struct {
	name string

	mu sync.Mutex // guards f
	f  *os.File   // nil: not open
}

// read reads the state of the lock. A missing file is not locked. One that is not locked is opened again: it may have been replaced.
func (l *lockReader) read() (lockState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		if state, err := readLock(l.f); err == nil && state.held {
			return state, nil
		}
		l.closeLocked()
	}
	fd, err := unix.Open(l.name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return lockState{}, nil
	}
	if err != nil {
		return lockState{}, fmt.Errorf("cannot open %s: %w", l.name, err)
	}
	l.f = os.NewFile(uintptr(fd), l.name)
	state, err := readLock(l.f)
	if err != nil || !state.held {
		l.closeLocked()
	}
	return state, err
}

func (l *lockReader) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeLocked()
}

func (l *lockReader) closeLocked() {
	if l.f != nil {
		_ = l.f.Close() // Nothing was written.
		l.f = nil
	}
}

// readLock reads the state of the lock from its open file.
func readLock(f *os.File) (lockState, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return lockState{}, fmt.Errorf("cannot read the lock on %s: %w", f.Name(), err)
	}
	out := lockState{held: lock.Type != unix.F_UNLCK}
	var b [64]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return lockState{}, fmt.Errorf("cannot read %s: %w", f.Name(), err)
	}
	var pid, at int64
	if _, err := fmt.Sscanf(string(b[:n]), "%d %d", &pid, &at); err == nil && time.Duration(at) <= procfs.BootTime() {
		out.pass = time.Duration(at)
	}
	return out, nil
}
