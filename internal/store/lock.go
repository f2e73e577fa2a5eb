package store

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// lock locks the directory for this process. The kernel unlocks it when the process ends.
func lock(d osDir) (*os.File, error) {
	f, err := d.root.OpenFile("lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: %s has locked it", ErrLocked, lockedBy(f))
		}
		return nil, errors.Join(err, f.Close())
	}
	// The process is written for the message above only. The lock does not depend on it.
	if f.Truncate(0) == nil {
		fmt.Fprintf(f, "pid %d (%s)\n", os.Getpid(), programName())
	}
	return f, nil
}

// lockDir locks a directory, until its lock is closed. It is created if missing.
func lockDir(path string) (locked, error) {
	d, err := openDir(path, runMode)
	if err != nil {
		return locked{}, fmt.Errorf("cannot open %s: %w", path, err)
	}
	l, err := take(d, path, runMode)
	if err = errors.Join(err, d.root.Close()); err != nil {
		return locked{}, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	return l, nil
}

// lockWait bounds the wait for the lock. A process that a killed daemon was starting has its files open until it executes its
// program.
const lockWait = 500 * time.Millisecond

func flock(f *os.File) error {
	end, again := time.NewTimer(lockWait), time.NewTicker(lockWait/50)
	defer end.Stop()
	defer again.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select { // The kernel has no event for the end of a lock.
		case <-again.C:
		case <-end.C:
			return err
		}
	}
}

// ErrLocked: another daemon uses the directory.
var ErrLocked = errors.New("another gpushared uses it")

func lockedBy(f *os.File) string {
	b, _, err := boundedread.Prefix(f, 200)
	if text := strings.TrimSpace(string(b)); err == nil && text != "" {
		return text
	}
	return "a process that did not write its name"
}

func programName() string {
	name, err := boundedread.Trusted("/proc/self/comm", boundedread.Value)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(name))
}
