package procfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// OpenFile is one file that a process has open.
type OpenFile struct {
	PID  int
	Name string // in the mount namespace of the process; a removed file ends in " (deleted)"; empty if it is too long for the kernel
	Type byte   // 'c' or 'b' for a device, 0 for other files
	Rdev uint64 // the number of a device; 0 for other files
	Dev  uint64 // with Ino: identifies the file
	Ino  uint64
	FD   string // the descriptor's number
}

// OnlyNamed reports whether the descriptor names the file and gives no use of it (O_PATH of open(2)): any user gets one, of any file. It
// is read now: of a descriptor that was closed since, or that cannot be read, it is not said.
func (f *OpenFile) OnlyNamed() bool {
	flags, err := strconv.ParseUint(descriptorInfo(f.PID, f.FD, "flags"), 8, 64)
	return err == nil && flags&unix.O_PATH != 0
}

// descriptorInfo returns what the kernel says of a descriptor (fdinfo of proc(5)); empty where it was closed by now. Only the beginning is
// read: what follows is as long as the process makes it, such as the list of an epoll.
func descriptorInfo(pid int, fd, key string) string {
	b, _, err := boundedread.OfProcess(pid, "fdinfo/"+fd, boundedread.Value)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// WalkOpenFiles calls found for each file that has a name and that one of the processes has open. It never waits for a file
// system: it asks the kernel for what it knows already (AT_STATX_DONT_SYNC), and gives up a file whose file system does not
// answer. unread is the number of processes and files that it could not read. It skips processes that have exited, and ends
// with ctx. A process with very many descriptors is read last, so that the others are always read.
func WalkOpenFiles(ctx context.Context, pids []int, found func(OpenFile)) (unread int, err error) {
	unread, err = walkDescriptors(ctx, pids, func(pid int, fds []string) (int, error) {
		files, unread := namedFiles(pid, fds)
		more, err := fileStats.read(files, found)
		return unread + more, err
	})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("cannot read the open files of all processes: %w", err)
	}
	return unread, err
}

// namedFile is a descriptor of a file with a name.
type namedFile struct {
	pid      int
	fd, name string // name: empty if it is too long
}

// link is the descriptor's link, which leads to the file without a look-up of its name.
func (f *namedFile) link() string { return descriptorLink(f.pid, f.fd) }

// namedFiles are those of the descriptors whose file has a name. Pipes, sockets and the like have none, and their links do
// not begin with a slash. The kernel has the names: this reads no file system. unread is the number of descriptors that it may not
// read: a caller that may list the descriptors of a process can lack the right to follow them (proc_fd_access_allowed in fs/proc/base.c).
func namedFiles(pid int, fds []string) (files []namedFile, unread int) {
	files = make([]namedFile, 0, len(fds))
	for _, fd := range fds {
		name, err := os.Readlink(descriptorLink(pid, fd))
		switch {
		case err == nil && strings.HasPrefix(name, "/"):
			files = append(files, namedFile{pid, fd, name})
		case errors.Is(err, unix.ENAMETOOLONG):
			// Longer than a page (d_path in fs/d_path.c). Any user can make such a path, step by step: its file is found without it.
			files = append(files, namedFile{pid, fd, ""})
		case err != nil && !closed(err):
			unread++
		}
	}
	return files, unread
}

// closed reports whether a descriptor was closed, or its process has exited, before it was read. Any other error is of one that is there.
func closed(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }
