package procfs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// openat opens a path that ends in a zero byte. unix.Open would copy the path to the heap, and this is called for thousands
// of pids a second.
func openat(path []byte) (int, error) {
	at := unix.AT_FDCWD // a variable: the constant is negative and does not convert
	for {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(&path[0])),
			unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
		switch errno {
		case 0:
			return int(fd), nil
		case unix.EINTR:
		default:
			return -1, errno
		}
	}
}
