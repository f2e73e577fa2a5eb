package launch

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/procfs"
)

// rootDirectory returns the device and the inode of the root directory of a process: its pid, or "self". A user may have changed theirs to a
// file system that asks its server first, in a namespace of their own, and the server may never answer.
func rootDirectory(pid string) (string, error) {
	var root string
	var err error
	read := func() { root, err = statRoot("/proc/" + pid + "/root") }
	number, own := strconv.Atoi(pid)
	if own != nil {
		read()
		return root, err
	}
	if !procfs.Within(number, read) {
		return "", errors.New("its root directory does not answer")
	}
	return root, err
}

func statRoot(link string) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err != nil {
		return "", os.NewSyscallError("statx", err)
	}
	return fmt.Sprintf("%d:%d:%d", st.Dev_major, st.Dev_minor, st.Ino), nil
}
