package launch

import (
	"bytes"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupMembers are the processes of a cgroup, as its file cgroup.events counts them.
type cgroupMembers struct{ events *os.File }

// openMembers opens the file in the cgroup's open directory.
func openMembers(dir int) (*cgroupMembers, error) {
	fd, err := unix.Openat(dir, "cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat cgroup.events", err)
	}
	return &cgroupMembers{events: os.NewFile(uintptr(fd), "cgroup.events")}, nil
}

// membersInterval is the longest time between two reads: the kernel loses the last notification of a cgroup that is removed at once.
const membersInterval = time.Second

// awaitNone returns when the cgroup has no process, or was removed.
func (m *cgroupMembers) awaitNone() {
	buf := make([]byte, 256)
	for {
		n, err := m.events.ReadAt(buf, 0)
		if n == 0 && err != nil || bytes.Contains(buf[:n], []byte("populated 0")) {
			return
		}
		fds := []unix.PollFd{{Fd: int32(m.events.Fd()), Events: unix.POLLPRI}} // cgroups(7)
		_, _ = unix.Poll(fds, int(membersInterval.Milliseconds()))             // What has changed is read.
	}
}
