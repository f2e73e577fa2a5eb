package cgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names in the run directory.
const (
	frozenDir = "frozen"    // one file for each scope that may be frozen now
	lockFile  = "thaw.lock" // locked by gpushare-thaw while it runs
)

// maxDeadlineFile bounds the read of one file. A deadline file has about 300 bytes.
const maxDeadlineFile = 16 << 10

// deadline is the time until which a process may keep a cgroup frozen. It is one file in <run dir>/frozen, named after
// the scope and the time: a later deadline is another file, so that removing a passed one never removes its successor.
// The file exists from before the freeze until after the thaw.
type deadline struct {
	Cgroup string  `json:"cgroup"`
	Until  int64   `json:"until"` // CLOCK_BOOTTIME, in nanoseconds
	Boot   string  `json:"boot"`  // the boot that the clock belongs to
	By     Process `json:"by"`    // the process that froze it and will thaw it
}

func (d deadline) check() error {
	if err := cleanPath(d.Cgroup); err != nil {
		return err
	}
	if d.Boot == "" || d.By.PID <= 0 {
		return errors.New("it has no boot id or no process")
	}
	return nil
}

// write puts the deadline into its file with a rename, so that no reader sees half of it, and returns the file's name.
// It does not sync the file: after a power cut no process is frozen.
func (d deadline) write(dir, id string) (string, error) {
	b, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	name := id + "@" + strconv.FormatInt(d.Until, 10)
	tmp := filepath.Join(dir, "."+name)
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return "", err
	}
	return name, os.Rename(tmp, filepath.Join(dir, name))
}

// scopeOfFile is the scope that a deadline file is named after.
func scopeOfFile(name string) string {
	id, _, _ := strings.Cut(name, "@")
	return id
}

// readDeadline reads one file.
func readDeadline(root *os.Root, name string) (deadline, error) {
	f, err := root.Open(name)
	if err != nil {
		return deadline{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return deadline{}, err
	}
	if !fi.Mode().IsRegular() {
		return deadline{}, errors.New("it is not a regular file")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxDeadlineFile))
	if err != nil {
		return deadline{}, err
	}
	var d deadline
	if err := json.Unmarshal(b, &d); err != nil {
		return deadline{}, err
	}
	return d, d.check()
}

// deadlineNames lists the deadline files.
func deadlineNames(root *os.Root) ([]string, error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// takeLock takes the thaw lock until the file is closed. It is a lock of the open file description, so that lockHeld can
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

// lockHeld reports whether a process has the thaw lock.
func lockHeld(name string) (bool, error) {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot open %s: %w", name, err)
	}
	defer unix.Close(fd)
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("cannot read the lock on %s: %w", name, err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// left is the duration until the deadline.
func (d deadline) left(now time.Duration) time.Duration { return time.Duration(d.Until) - now }
