package procfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenFile is one file that a process has open.
type OpenFile struct {
	PID  int
	Name string // in the mount namespace of the process
	Rdev uint64 // the device number of a character device; 0 for other files
	Dev  uint64 // with Ino: identifies the file
	Ino  uint64
}

// WalkOpenFiles calls found for each open file, of each process, whose name contains part. It calls stat only for these,
// because stat can hang on a network file system, while the kernel knows the name. It skips processes that exit
// meanwhile, and skips and counts processes whose open files it may not read. It ends with ctx.
func WalkOpenFiles(ctx context.Context, part string, found func(OpenFile)) (hidden int, err error) {
	pids, err := PIDs()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return hidden, fmt.Errorf("cannot read the open files of all processes: %w", err)
		}
		if denied := walkProcess(pid, part, found); denied {
			hidden++
		}
	}
	return hidden, nil
}

// walkProcess walks the open files of one process. denied: it may not read them.
func walkProcess(pid int, part string, found func(OpenFile)) (denied bool) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	f, err := os.Open(dir)
	if err != nil {
		return errors.Is(err, fs.ErrPermission)
	}
	defer f.Close()
	fds, err := f.Readdirnames(-1)
	if err != nil {
		return errors.Is(err, fs.ErrPermission)
	}
	for _, fd := range fds {
		link := dir + "/" + fd
		name, err := os.Readlink(link)
		if err != nil || !strings.Contains(name, part) {
			continue // closed by now, or another name
		}
		var st unix.Stat_t
		if unix.Stat(link, &st) != nil {
			continue
		}
		o := OpenFile{PID: pid, Name: name, Dev: st.Dev, Ino: st.Ino}
		if st.Mode&unix.S_IFMT == unix.S_IFCHR {
			o.Rdev = st.Rdev
		}
		found(o)
	}
	return false
}
