package procfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// OpenFile is one file that a process has open.
type OpenFile struct {
	PID  int
	Name string // in the mount namespace of the process; a removed file ends in " (deleted)"
	Type byte   // 'c' or 'b' for a device, 0 for other files
	Rdev uint64 // the number of a device; 0 for other files
	Dev  uint64 // with Ino: identifies the file
	Ino  uint64
}

// WalkOpenFiles calls found for each file that has a name and that one of the processes has open. It never waits for a file
// system: it asks the kernel for what it knows already (AT_STATX_DONT_SYNC), and gives up a file whose file system does not
// answer. unread is the number of processes and files that it could not read. It skips processes that have exited, and ends
// with ctx.
func WalkOpenFiles(ctx context.Context, pids []int, found func(OpenFile)) (unread int, err error) {
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return unread, fmt.Errorf("cannot read the open files of all processes: %w", err)
		}
		files, err := namedFiles(pid)
		if errors.Is(err, fs.ErrPermission) {
			unread++
		}
		n, err := fileStats.read(files, found)
		unread += n
		if err != nil {
			return unread, err
		}
	}
	return unread, nil
}

// namedFile is a descriptor of a file with a name.
type namedFile struct {
	pid      int
	fd, name string
}

// link is the descriptor's link, which leads to the file without a look-up of its name.
func (f *namedFile) link() string { return fmt.Sprintf("/proc/%d/fd/%s", f.pid, f.fd) }

// namedFiles lists the open files of a process that have a name. Pipes, sockets and the like have none, and their links do
// not begin with a slash. The kernel has the names: this reads no file system.
func namedFiles(pid int) ([]namedFile, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fds, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	files := make([]namedFile, 0, len(fds))
	for _, fd := range fds {
		if name, err := os.Readlink(dir + "/" + fd); err == nil && strings.HasPrefix(name, "/") {
			files = append(files, namedFile{pid, fd, name})
		}
	}
	return files, nil
}
