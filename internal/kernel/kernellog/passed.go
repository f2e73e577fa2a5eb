package kernellog

import (
	"os"

	"golang.org/x/sys/unix"
)

// The number of /dev/kmsg (Documentation/admin-guide/devices.txt).
const kmsgMajor, kmsgMinor = 1, 11

// passed is the kernel's log, if the service manager opened it as descriptor fd of this process, and nil otherwise. The kernel
// compares permissions when the log is opened, so a process that inherits it needs none.
func passed(fd int) *os.File {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(kmsgMajor, kmsgMinor) {
		return nil
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	// So that the end of a context can end a read.
	if unix.SetNonblock(own, true) != nil {
		_ = unix.Close(own)
		return nil
	}
	return os.NewFile(uintptr(own), "/dev/kmsg")
}
