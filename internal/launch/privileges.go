package launch

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spareThreads is more than the threads that a supervisor has at once. A thread counts against the tasks limit of the tenant, whose
// processes may use up that limit: the supervisor has all of its threads before the program starts.
const spareThreads = 6

// reserveThreads lets the runtime start so many threads, which it keeps.
func reserveThreads(n int) {
	var started, ended sync.WaitGroup
	started.Add(n)
	release := make(chan struct{})
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			started.Done()
			<-release
		})
	}
	started.Wait()
	close(release)
	ended.Wait()
}

// protectFromOOM excludes this process from what the kernel kills when memory runs out: it has the result of what was killed.
// The program gets the value of its caller. Only root may do that.
func protectFromOOM() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }

// dropCapabilities takes all capabilities from this process. It goes on to write files of its own user only.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	// A build with cgo, as that of tests with the race detector, has threads that Go does not know.
	if errno != 0 && !errors.Is(errno, syscall.ENOTSUP) {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}
