package procfstest

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// AwaitEnd waits for the end of a process, which need not be a child.
func AwaitEnd(t *testing.T, pid int) {
	t.Helper()
	const longest = 30 * time.Second
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(longest.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("process %d does not end (%v)", pid, err)
		}
		return
	}
}
