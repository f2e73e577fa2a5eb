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
	Name string // as the process's namespace calls it
	Rdev uint64 // the number of a character device; 0 when it is none
	Dev  uint64 // with Ino: which file it is
	Ino  uint64
}

// WalkOpenFiles calls found for each descriptor of each process whose file's name holds part, and for no other: to ask what a
// file is can hang where a file server does, its name is known to the kernel. Processes that end meanwhile, and those
// whose descriptors may not be seen, are passed over; the second are counted. It ends with ctx.
func WalkOpenFiles(ctx context.Context, part string, found func(OpenFile)) (hidden int, err error) {
	pids, err := PIDs()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return hidden, fmt.Errorf("cannot look through all processes: %w", err)
		}
		if denied := walkProcess(pid, part, found); denied {
			hidden++
		}
	}
	return hidden, nil
}

// walkProcess looks at one process. denied: its descriptors may not be seen.
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
			continue // Closed by now, or nothing that is looked for.
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
