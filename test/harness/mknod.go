package harness

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// canMknod reports whether the virtual GPUs in a directory can be real device nodes, to which device rules apply. That needs
// root, a file system without nodev, and a host without the NVIDIA driver: an open of a node with its numbers would open the
// real GPU or load the driver.
func canMknod(dir string) bool {
	if os.Geteuid() != 0 || vendorDriver() {
		return false
	}
	probe := filepath.Join(dir, "probe")
	if err := unix.Mknod(probe, unix.S_IFCHR|0o600, int(unix.Mkdev(195, 253))); err != nil {
		return false
	}
	defer os.Remove(probe)
	fd, err := unix.Open(probe, unix.O_RDONLY, 0)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.ENXIO)
}

// vendorDriver reports whether a driver for the major number of the GPUs is loaded or can be.
func vendorDriver() bool {
	if b, err := os.ReadFile("/proc/devices"); err != nil || strings.Contains(string(b), "195 nvidia") {
		return true
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return true
	}
	b, _ := os.ReadFile(filepath.Join("/lib/modules", unix.ByteSliceToString(u.Release[:]), "modules.alias"))
	return strings.Contains(string(b), "char-major-195")
}
