package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// freezeFiles are the files of one cgroup by which it is frozen and thawed.
type freezeFiles struct {
	freeze *os.File // cgroup.freeze
	events *os.File // cgroup.events
	kept   bool     // keptFiles closes them
}

// openFreezeFiles opens the files of a cgroup's directory. It creates none: a missing file is not supported or was removed.
func openFreezeFiles(dir string) (*freezeFiles, error) {
	freeze, err := openBlocking(dir+"/cgroup.freeze", unix.O_WRONLY)
	if err != nil {
		return nil, err
	}
	events, err := openBlocking(dir+"/cgroup.events", unix.O_RDONLY)
	if err != nil {
		freeze.Close()
		return nil, err
	}
	return &freezeFiles{freeze: freeze, events: events}, nil
}

// openBlocking opens a file that the Go runtime does not wait for: os.Open would register it for events.
func openBlocking(name string, mode int) (*os.File, error) {
	for {
		fd, err := unix.Open(name, mode|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
}

// isClosed reports whether the cgroup was removed, and another call has closed its files or not.
func isClosed(err error) bool { return isRemoved(err) || errors.Is(err, os.ErrClosed) }

// close closes the files. A call that uses them ends first.
func (f *freezeFiles) close() {
	f.freeze.Close()
	f.events.Close()
}

func (f *freezeFiles) set(frozen bool) error {
	value := []byte{'0'}
	if frozen {
		value[0] = '1'
	}
	_, err := f.freeze.Write(value)
	return err
}

// waitFor reads the state until it is as wanted, or until moves returns that nothing runs. moves may be nil.
func (f *freezeFiles) waitFor(ctx context.Context, cg string, want bool, moves func() (string, error)) error {
	why := ""
	for n := 0; ; n++ {
		is, err := f.frozen()
		if isClosed(err) {
			return fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
		}
		if err != nil {
			return fmt.Errorf("cannot read the events of cgroup %s: %w", cg, err)
		}
		if is == want {
			return nil
		}
		if moves != nil && n >= 5 {
			if why, err = moves(); err != nil || why == "" {
				return err
			}
			why = ": " + why
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s is not %s yet%s: %w", cg, map[bool]string{true: "frozen", false: "thawed"}[want], why, err)
		}
		// The first read is nearly always too early: read again without a pause. Processes that are not frozen after some short
		// pauses wait for a core.
		switch {
		case n == 0:
		case n < 5:
			shortPause(pollPause)
		default:
			f.waitEvent()
		}
	}
}

// frozen reads the key frozen of cgroup.events, in one call: ReadAt would read until the end, which is a second one. It cannot block,
// so the Go runtime need not know of it.
func (f *freezeFiles) frozen() (bool, error) {
	conn, err := f.events.SyscallConn()
	if err != nil {
		return false, err
	}
	var buf [128]byte
	var n uintptr
	var failed unix.Errno
	if err := conn.Control(func(fd uintptr) {
		n, _, failed = unix.RawSyscall6(unix.SYS_PREAD64, fd, uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)), 0, 0, 0)
	}); err != nil {
		return false, err
	}
	if failed != 0 {
		return false, failed
	}
	_, rest, ok := bytes.Cut(buf[:n], []byte("frozen "))
	if !ok || len(rest) == 0 {
		return false, ErrNotSupported
	}
	return rest[0] == '1', nil
}

// waitEvent waits until cgroup.events changes, which the kernel reports as POLLPRI (Documentation/admin-guide/cgroup-v2.rst), and at
// most 1 ms.
func (f *freezeFiles) waitEvent() {
	c, err := f.events.SyscallConn()
	if err != nil {
		return // It is closed: the next read fails.
	}
	_ = c.Control(func(fd uintptr) {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}, 1) // The file is read again in any case.
	})
}

// shortPause sleeps like pause, and keeps the thread from the Go runtime: to give it away and to get it back would take more
// time of the CPU than the freeze.
func shortPause(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	slack := threadSlack()
	if slack > exactSlack {
		_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, exactSlack, 0) // It cannot fail.
	}
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0) // An early return does no harm.
	if slack > exactSlack {
		_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, slack, 0) // Programs that are started from here inherit it.
	}
}

// exactSlack is the slack of a short pause in ns: that of a thread for which none is set.
const exactSlack = 50_000

// threadSlack is how much later than requested the kernel may end a sleep of the thread that calls it, in ns.
func threadSlack() uintptr {
	slack, _, _ := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_TIMERSLACK, 0, 0) // It cannot fail.
	return slack
}

// keptFiles are the open files of cgroups that are frozen many times a second: to find them by their paths takes more time of the
// CPU than to freeze. nil keeps none. Of more than mostKept cgroups they are opened for each call: a process may have so many files only.
type keptFiles struct {
	mu   sync.Mutex // guards open
	open map[string]*freezeFiles
}

// mostKept is of how many cgroups the files are kept: two of each, of the 65536 that the daemon's unit permits for all that it does.
const mostKept = 8192

func (k *keptFiles) get(cg string) *freezeFiles {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.open[cg]
}

// put keeps the files if there is room, and returns those to use.
func (k *keptFiles) put(cg string, files *freezeFiles) *freezeFiles {
	if k == nil {
		return files
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if other := k.open[cg]; other != nil { // Two calls have opened them.
		files.close()
		return other
	}
	if len(k.open) < mostKept {
		files.kept = true
		k.open[cg] = files
	}
	return files
}

func (k *keptFiles) forget(cg string) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if files := k.open[cg]; files != nil {
		files.close()
		delete(k.open, cg)
	}
}
