package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Cgroup is the process's cgroup in the v2 hierarchy, "/" for the root, as in /proc/PID/cgroup. It is relative to the
// reader's cgroup namespace. ErrNoProcess when there is no such process.
func Cgroup(pid int) (string, error) {
	buf := cgroupBuffers.Get().(*[4096]byte) //nolint:forcetypeassert // It has no others.
	defer cgroupBuffers.Put(buf)
	b, err := CgroupBytes(pid, buf[:])
	if err != nil {
		return "", err
	}
	return string(b), nil
}

// cgroupBuffers are for Cgroup: each lease has a goroutine that calls it now and then, and on its stack a buffer would be resident.
var cgroupBuffers = sync.Pool{New: func() any { return new([4096]byte) }}

// CgroupBytes is Cgroup without allocation, for many pids. The result is in buf, which should have 4096 bytes,
// unless it is longer.
func CgroupBytes(pid int, buf []byte) ([]byte, error) {
	if pid <= 0 {
		return nil, ErrNoProcess
	}
	n, err := readSmall(pid, "/cgroup", buf)
	if err != nil {
		return nil, err
	}
	rest := buf[:n]
	if n == len(buf) {
		// A long path, or many v1 hierarchies: the line of v2 is the last one.
		if rest, _, err = boundedread.OfProcess(pid, "cgroup", boundedread.Process); err != nil {
			return nil, unreadable(pid, "cgroup", err)
		}
	}
	return parseCgroup(rest)
}

// parseCgroup finds the path in the v2 hierarchy in /proc/PID/cgroup.
func parseCgroup(rest []byte) ([]byte, error) {
	for len(rest) > 0 {
		line := rest
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			line, rest = rest[:i], rest[i+1:]
		} else {
			rest = nil
		}
		// The v2 hierarchy has number 0 and no controller names, also when v1 hierarchies are mounted.
		if path, ok := bytes.CutPrefix(line, []byte("0::")); ok {
			return bytes.TrimSuffix(path, []byte(" (deleted)")), nil
		}
	}
	return nil, errNoV2
}

var errNoV2 = errors.New("the process is in no cgroup v2 hierarchy")

// readSmall reads a file of /proc/PID in one read, without the runtime's poller and without allocating.
func readSmall(pid int, name string, buf []byte) (int, error) {
	var path [64]byte
	p := append(path[:0], "/proc/"...)
	p = strconv.AppendInt(p, int64(pid), 10)
	p = append(p, name...)
	p = append(p, 0)
	fd, err := openat(p)
	if err == nil {
		var n int
		for {
			n, err = unix.Read(fd, buf)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		unix.Close(fd)
		if err == nil {
			return n, nil
		}
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return 0, ErrNoProcess
	}
	return 0, fmt.Errorf("cannot read %s of pid %d: %w", name[1:], pid, err)
}
