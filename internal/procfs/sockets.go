package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sockets lists the sockets that a process has open: the descriptor of each inode.
func Sockets(pid int) (map[uint64]int, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pid %d: %w", pid, ErrNoProcess)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the sockets of pid %d: %w", pid, err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sockets of pid %d: %w", pid, err)
	}
	sockets := map[uint64]int{}
	for _, name := range names {
		link, err := os.Readlink(dir + "/" + name)
		if err != nil {
			continue // It was closed by now.
		}
		number, ok := strings.CutPrefix(link, "socket:[")
		if !ok {
			continue
		}
		ino, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
		fd, e := strconv.Atoi(name)
		if err == nil && e == nil {
			sockets[ino] = fd
		}
	}
	return sockets, nil
}

// SocketUsers lists the running processes that have a socket open, by its inode. It reads all processes, and leaves out those
// that it may not read.
func SocketUsers(ino uint64) ([]Stat, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s Stat) bool {
		sockets, err := Sockets(s.PID)
		_, has := sockets[ino]
		return err != nil || !has || s.Dead()
	}), nil
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
