package procfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Sockets lists the sockets that a process has open: the descriptor of each inode. It is for programs of root, which have only so
// many: see SocketUsers for those of users.
func Sockets(pid int) (map[uint64]int, error) {
	sockets := map[uint64]int{}
	var failed error // One that is not read may be the one that the caller looks for.
	_, err := eachDescriptor(pid, 0, boundedread.Names, func(fds []string) bool {
		for _, fd := range fds {
			ino, ok, err := socketOf(pid, fd)
			if err != nil {
				failed = err
				return false
			}
			if number, err := strconv.Atoi(fd); ok && err == nil {
				sockets[ino] = number
			}
		}
		return true
	})
	if err == nil {
		err = failed
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pid %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the sockets of pid %d: %w", pid, err)
	}
	return sockets, nil
}

// socketOf returns the inode of a descriptor that is a socket.
func socketOf(pid int, fd string) (ino uint64, is bool, err error) {
	link, err := os.Readlink(descriptorLink(pid, fd))
	if err != nil {
		if closed(err) {
			err = nil
		}
		return 0, false, err
	}
	number, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, false, nil
	}
	ino, err = strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	return ino, err == nil, nil
}

// socketUsersTimeout bounds the search for the users of a socket: processes may have millions of descriptors.
const socketUsersTimeout = time.Second

// SocketUsers lists the running processes that have a socket open, by its inode. It reads the descriptors of all processes, and
// leaves out those that it may not read, and what it could not read in a second.
func SocketUsers(ctx context.Context, ino uint64) ([]Stat, error) {
	pids, err := PIDs()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, socketUsersTimeout)
	defer cancel()
	users := map[int]bool{}
	// What was not read is not known to use it.
	_, _ = walkDescriptors(ctx, pids, func(pid int, fds []string) (int, error) {
		users[pid] = users[pid] || slices.ContainsFunc(fds, func(fd string) bool {
			is, ok, _ := socketOf(pid, fd) // What may not be read is not known to be it.
			return ok && is == ino
		})
		return 0, nil
	})
	var found []Stat
	for _, pid := range pids {
		if s, err := Read(pid); users[pid] && err == nil && !s.Dead() {
			found = append(found, s)
		}
	}
	return found, nil
}

// AwaitedSockets returns the descriptors from which threads of a process wait to read in the kernel, without a deadline of
// select or poll. Source: proc_pid_syscall(5).
func AwaitedSockets(pid int) ([]int, error) {
	tids, err := threadIDs(pid)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, tid := range tids {
		b, err := readFile(pid, "task/"+strconv.Itoa(tid)+"/syscall")
		if errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b))
		if len(fields) < 2 {
			continue // It runs.
		}
		switch number, _ := strconv.Atoi(fields[0]); number {
		case unix.SYS_READ, unix.SYS_RECVFROM, unix.SYS_RECVMSG:
			if fd, err := strconv.ParseUint(strings.TrimPrefix(fields[1], "0x"), 16, 32); err == nil {
				fds = append(fds, int(fd))
			}
		}
	}
	return fds, nil
}
