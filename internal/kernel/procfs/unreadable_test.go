package procfs_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// withoutTracing runs a function as root who may list the descriptors of other processes, and not follow them.
func withoutTracing(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // The thread ends with the goroutine, and what it may with it.
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&h, &caps[0])
		if err == nil {
			caps[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
			err = unix.Capset(&h, &caps[0])
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A descriptor that may not be read is not one that is closed: the list is not complete, and the sockets are an error.
func TestDescriptorsThatMayNotBeRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("listing the descriptors of another user needs root")
	}
	device, err := os.Open("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.ExtraFiles = []*os.File{device}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if files, unread := walked(t, pid); files["/dev/full"].PID != pid || unread != 0 {
		t.Errorf("with all capabilities: %v, %d unread", files, unread)
	}
	files, unread := map[string]procfs.OpenFile{}, 0
	var sockets map[uint64]int
	var walk, list, link error
	withoutTracing(t, func() {
		_, link = os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pid))
		unread, walk = procfs.WalkOpenFiles(t.Context(), []int{pid}, func(o procfs.OpenFile) { files[o.Name] = o })
		sockets, list = procfs.Sockets(pid)
	})
	if link == nil {
		t.Skip("needs a kernel that asks for CAP_SYS_PTRACE before it lets root follow the descriptors of another process")
	}
	if len(files) != 0 || unread < 4 || walk != nil {
		t.Errorf("%d of at least 4 descriptors are counted as unread, %v are read: %v", unread, files, walk)
	}
	if list == nil {
		t.Errorf("the sockets are %v", sockets)
	}
}
