package procfs

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// BootID is the kernel's random id of this boot, read below root ("/" on a real host).
func BootID(root string) (string, error) {
	b, err := boundedread.Trusted(filepath.Join(root, "proc/sys/kernel/random/boot_id"), boundedread.Value)
	if err != nil {
		return "", fmt.Errorf("cannot read the boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Ticks is the number of clock ticks in a second in which the kernel counts start times for programs (USER_HZ), on every Linux for
// which NVIDIA has a driver.
const Ticks = 100

// BootTime is the time since boot, including suspend (CLOCK_BOOTTIME). No program can set this clock.
func BootTime() time.Duration {
	var ts unix.Timespec
	// The call cannot fail: every kernel with cgroup v2 has this clock, and the pointer is valid. It cannot block either, so the
	// Go runtime need not know of it, which would cost more than the call.
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}

// Age is for how long a process has run that started so many clock ticks after boot; not negative.
func Age(start uint64) time.Duration {
	return max(BootTime()-time.Duration(start)*time.Second/Ticks, 0)
}

// LastPID is the pid that the kernel assigned last in this process's pid namespace; 0 when it cannot be read.
func LastPID() int {
	b, err := boundedread.Trusted("/proc/loadavg", boundedread.Value)
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) == 0 {
		return 0
	}
	pid, err := strconv.Atoi(f[len(f)-1])
	if err != nil {
		return 0
	}
	return pid
}
