package cli

import (
	"strconv"
	"strings"
	"syscall"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// umask is the mask of this process. Where the kernel reports it, it is read: umask(2) returns it only while it sets another, and a file
// that another thread creates meanwhile is everybody's to write.
func umask() int {
	b, err := boundedread.Trusted("/proc/self/status", boundedread.Status)
	if err == nil {
		if mask, ok := reportedUmask(string(b)); ok {
			return mask
		}
	}
	mask := syscall.Umask(0)
	syscall.Umask(mask)
	return mask
}

// reportedUmask reads it in a status file (proc_pid_status(5)): kernels before 4.7 have no such line.
func reportedUmask(status string) (mask int, ok bool) {
	for line := range strings.Lines(status) {
		if v, found := strings.CutPrefix(line, "Umask:"); found {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 8, 9)
			return int(n), err == nil
		}
	}
	return 0, false
}
