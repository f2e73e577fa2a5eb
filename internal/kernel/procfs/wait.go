package procfs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Wait is what a thread waits for in the kernel.
type Wait struct {
	Function string // of the kernel; empty: it is hidden, or the thread does not wait
	Call     string // of those that name a file: "read"; "page fault"; empty: another one, or none
	File     string // that the call names, with the descriptor's name; empty: it cannot be read
}

// ReadWait reads what a thread waits for. It asks no file system, and gives up where a lock of the process is held.
func ReadWait(pid, tid int) Wait {
	dir := fmt.Sprintf("/proc/%d/task/%d/", pid, tid)
	var w Wait
	// The lock for this one is never held for long.
	if b, err := readSome(dir+"wchan", 256); err == nil && string(b) != "0" {
		w.Function = string(b)
	}
	var call, file string
	ok := Within(pid, func() {
		b, err := readSome(dir+"syscall", 256)
		if err == nil {
			call, file = callOf(tid, dir, strings.Fields(string(b)))
		}
	})
	if ok {
		w.Call, w.File = call, file
	}
	return w
}

// readSome reads the start of a file of the kernel.
func readSome(name string, most int) ([]byte, error) {
	b, _, err := boundedread.TrustedPrefix(name, most)
	return b, err
}

// callOf returns the call and its file from /proc/PID/syscall (proc_pid_syscall(5)): its number and its arguments.
func callOf(tid int, dir string, f []string) (name, file string) {
	if len(f) == 0 {
		return "", ""
	}
	if f[0] == "-1" {
		return "page fault", "" // It is in the kernel, but not by a call.
	}
	number, err := strconv.Atoi(f[0])
	if err != nil {
		return "", "" // "running"
	}
	argument := func(i int) uint64 {
		if len(f) <= i+1 {
			return 0
		}
		v, _ := strconv.ParseUint(strings.TrimPrefix(f[i+1], "0x"), 16, 64) // The kernel writes numbers.
		return v
	}
	if c, ok := descriptorCalls[number]; ok {
		return c.name, linkOf(dir, int32(argument(c.argument)))
	}
	c, ok := pathCalls[number]
	if !ok {
		return "", ""
	}
	path := textOf(tid, uintptr(argument(c.argument)))
	if path == "" || filepath.IsAbs(path) {
		return c.name, path
	}
	base := ""
	if fd := int32(argument(0)); c.argument == 1 && fd != unix.AT_FDCWD {
		base = linkOf(dir, fd)
	} else {
		base, _ = os.Readlink(dir + "cwd") // Without it the path stays relative.
	}
	return c.name, filepath.Join(base, path)
}

// linkOf is the name of a descriptor.
func linkOf(dir string, fd int32) string {
	name, _ := os.Readlink(dir + "fd/" + strconv.Itoa(int(fd))) // It may be closed.
	return name
}

// textOf reads a path from the memory of a process.
func textOf(tid int, at uintptr) string {
	const size = 4096
	var text []byte
	for len(text) < unix.PathMax && at != 0 {
		buf := make([]byte, size-int(at%size)) // The next page may not exist.
		local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
		n, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: at, Len: len(buf)}}, 0)
		if err != nil || n <= 0 {
			return ""
		}
		if end := bytes.IndexByte(buf[:n], 0); end >= 0 {
			return string(append(text, buf[:end]...))
		}
		text, at = append(text, buf[:n]...), at+uintptr(n)
	}
	return ""
}

// call is a system call, and which argument names its file.
type call struct {
	name     string
	argument int
}

// descriptorCalls are calls on an open file, which may wait for its file system.
var descriptorCalls = map[int]call{
	unix.SYS_READ: {
		"read",
		0,
	},
	unix.SYS_PREAD64: {"pread", 0},
	unix.SYS_READV:   {"readv", 0},
	unix.SYS_PREADV:  {"preadv", 0},
	unix.SYS_PREADV2: {"preadv", 0},
	unix.SYS_WRITE: {
		"write",
		0,
	},
	unix.SYS_PWRITE64: {"pwrite", 0},
	unix.SYS_WRITEV:   {"writev", 0},
	unix.SYS_PWRITEV:  {"pwritev", 0},
	unix.SYS_PWRITEV2: {"pwritev", 0},
	unix.SYS_FSYNC: {
		"fsync",
		0,
	},
	unix.SYS_FDATASYNC:  {"fdatasync", 0},
	unix.SYS_SYNCFS:     {"syncfs", 0},
	unix.SYS_FSTAT:      {"fstat", 0},
	unix.SYS_GETDENTS64: {"getdents", 0},
	unix.SYS_IOCTL:      {"ioctl", 0},
	unix.SYS_CLOSE:      {"close", 0},
	unix.SYS_FTRUNCATE:  {"ftruncate", 0},
	unix.SYS_FALLOCATE:  {"fallocate", 0},
	unix.SYS_FLOCK: {
		"flock",
		0,
	},
	unix.SYS_FCNTL:           {"fcntl", 0},
	unix.SYS_LSEEK:           {"lseek", 0},
	unix.SYS_FCHDIR:          {"fchdir", 0},
	unix.SYS_FSTATFS:         {"fstatfs", 0},
	unix.SYS_FCHMOD:          {"fchmod", 0},
	unix.SYS_FCHOWN:          {"fchown", 0},
	unix.SYS_SENDFILE:        {"sendfile", 1},
	unix.SYS_SPLICE:          {"splice", 0},
	unix.SYS_COPY_FILE_RANGE: {"copy_file_range", 0},
	unix.SYS_MMAP:            {"mmap", 4},
}

// pathCalls are calls with a path. Where it is the second argument, the first is the directory that it is relative to.
var pathCalls = func() map[int]call {
	all := map[int]call{
		unix.SYS_EXECVE: {
			"execve",
			0,
		},
		unix.SYS_EXECVEAT: {"execveat", 1},
		unix.SYS_OPENAT:   {"openat", 1},
		unix.SYS_OPENAT2:  {"openat2", 1},
		unix.SYS_STATX:    {"statx", 1},
		unix.SYS_FACCESSAT: {
			"faccessat",
			1,
		},
		unix.SYS_FACCESSAT2: {"faccessat2", 1},
		unix.SYS_READLINKAT: {"readlinkat", 1},
		unix.SYS_UNLINKAT:   {"unlinkat", 1},
		unix.SYS_MKDIRAT: {
			"mkdirat",
			1,
		},
		unix.SYS_FCHMODAT:  {"fchmodat", 1},
		unix.SYS_FCHOWNAT:  {"fchownat", 1},
		unix.SYS_UTIMENSAT: {"utimensat", 1},
		unix.SYS_RENAMEAT2: {
			"renameat2",
			1,
		},
		unix.SYS_LINKAT:   {"linkat", 1},
		unix.SYS_CHDIR:    {"chdir", 0},
		unix.SYS_TRUNCATE: {"truncate", 0},
		unix.SYS_STATFS:   {"statfs", 0},
	}
	for number, c := range ownPathCalls {
		all[number] = c
	}
	return all
}()
