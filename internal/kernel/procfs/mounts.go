package procfs

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Mount is one mount in the mount namespace of a process.
type Mount struct {
	ID           int // unique on the host while the mount exists
	Major, Minor uint32
	Point        string // below the root directory of the process
	Type         string // of the file system: "ext4", "fuse.sshfs"
	Source       string // what is mounted, as "server:/export"
}

// Bounds of what is read of the mounts of a process: a user may have 100000 in a namespace of their own.
const (
	mostMountBytes = 16 << 20
	mostMountLine  = 64 << 10
)

// WalkMounts calls each for the mounts that a thread sees, in the order in which one hides another. The kernel has them all: no
// file system is asked. One that has exited sees none.
func WalkMounts(tid int, each func(Mount)) error {
	f, err := os.Open("/proc/" + strconv.Itoa(tid) + "/mountinfo")
	if err != nil {
		return fmt.Errorf("cannot read the mounts of thread %d: %w", tid, err)
	}
	defer f.Close()
	lines := boundedread.NewLines(io.LimitReader(f, mostMountBytes), mostMountLine)
	for line, ok := lines.Next(); ok; line, ok = lines.Next() {
		if m, known := parseMount(string(line)); known {
			each(m)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("cannot read the mounts of thread %d: %w", tid, err)
	}
	return nil
}

// parseMount reads a line of /proc/PID/mountinfo (proc_pid_mountinfo(5)).
func parseMount(line string) (m Mount, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return m, false
	}
	var err error
	if m.ID, err = strconv.Atoi(f[0]); err != nil {
		return m, false
	}
	major, minor, _ := strings.Cut(f[2], ":")
	ma, err1 := strconv.ParseUint(major, 10, 32)
	mi, err2 := strconv.ParseUint(minor, 10, 32)
	if err1 != nil || err2 != nil {
		return m, false
	}
	m.Major, m.Minor, m.Point = uint32(ma), uint32(mi), unescape(f[4])
	for i := 6; i+2 < len(f); i++ { // The optional fields end with a dash.
		if f[i] == "-" {
			m.Type, m.Source = unescape(f[i+1]), unescape(f[i+2])
			return m, true
		}
	}
	return m, false
}

// unescape undoes the octal escapes of spaces, tabs, line ends and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Has reports whether a path is on the mount, unless another mount hides it there.
func (m Mount) Has(path string) bool {
	return m.Point == "/" && strings.HasPrefix(path, "/") || path == m.Point || strings.HasPrefix(path, m.Point+"/")
}
