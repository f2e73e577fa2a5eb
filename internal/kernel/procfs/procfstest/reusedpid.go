// Package procfstest lets tests await the end of a process, and have for themselves what is otherwise of the whole host: pids, of which
// they reuse one for real, and mounts.
package procfstest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// InPIDNamespace runs the test in a new pid namespace, and reports true there. In the process that started it, it reports
// false and has its result.
func InPIDNamespace(t *testing.T) bool {
	t.Helper()
	const inside = "GPUSHARE_TEST_PID_NAMESPACE"
	if os.Getenv(inside) != "" {
		if err := errors.Join(
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""),
		); err != nil {
			t.Skipf("needs a mount of /proc in a pid namespace: %v", err)
		}
		startThreads()
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to create a pid namespace")
	}
	rerun(t, inside, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS})
	return false
}

// startThreads makes the Go runtime start its threads now, because each takes a pid. The runtime keeps idle threads.
func startThreads() {
	const enough = 32
	var wg sync.WaitGroup
	for range enough {
		wg.Go(func() { block(50 * time.Millisecond) })
	}
	wg.Wait()
}

// NextPID makes the kernel give this pid, or the next free one above it, to the next process or thread of the namespace.
func NextPID(t *testing.T, pid int) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, pid-1), 0); err != nil {
		t.Skipf("needs a kernel that lets root choose the next pid: %v", err)
	}
}

// AwaitOtherStart returns when a process that starts has another start time than this one.
func AwaitOtherStart(start uint64) {
	const tick = 10 * time.Millisecond // the resolution of start times
	for procfs.BootTime() <= time.Duration(start+1)*tick {
		block(time.Millisecond)
	}
}

// block occupies a thread.
func block(d time.Duration) {
	ts := unix.NsecToTimespec(d.Nanoseconds())
	// An early return does no harm.
	_ = unix.Nanosleep(&ts, nil)
}
