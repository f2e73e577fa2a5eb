package fuse

import (
	"context"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/procfs"
)

// Server is a process that has a connection open.
type Server struct {
	PID   int
	Start uint64
	// Connection is the number of its connection; 0 where the kernel does not tell (before Linux 6.16).
	Connection uint32

	fd int
}

// The bounds of a search. A user may have as many descriptors as they like.
const (
	mostFiles   = 4096 // of one process
	mostServers = 64
)

// Servers lists the processes of these users that have a connection open: one of these numbers, or one that the kernel does not tell.
// It reads names of descriptors and no file. all: ctx lasted until it had read every process.
func Servers(ctx context.Context, users []uint32, numbers map[uint32]bool) (out []Server, all bool) {
	pids, err := procfs.PIDs()
	if err != nil {
		return nil, false
	}
	of := map[uint32]bool{}
	for _, uid := range users {
		of[uid] = true
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return out, false
		}
		if len(out) >= mostServers {
			break
		}
		if uid, err := procfs.UID(pid); err != nil || !of[uid] {
			continue
		}
		start, err := procfs.Start(pid)
		if err != nil {
			continue // It has exited.
		}
		for _, s := range openConnections(pid) {
			if s.Connection == 0 || numbers[s.Connection] {
				s.Start = start
				out = append(out, s)
			}
		}
	}
	return out, true
}

// openConnections lists the descriptors of /dev/fuse of a process.
func openConnections(pid int) []Server {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, err := boundedread.FirstNames(d, mostFiles)
	if err != nil {
		return nil
	}
	var out []Server
	for _, name := range names {
		// The device has no other name: only root makes nodes. In another root directory its path may be longer.
		if link, err := os.Readlink(dir + "/" + name); err != nil || !strings.HasSuffix(link, "/fuse") {
			continue
		}
		fd, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		out = append(out, Server{PID: pid, Connection: connectionOf(pid, fd), fd: fd})
	}
	return out
}

// connectionOf reads the number of a connection from its descriptor; 0: the kernel does not tell, or it is not mounted.
func connectionOf(pid, fd int) uint32 {
	b, _, err := boundedread.OfProcess(pid, "fdinfo/"+strconv.Itoa(fd), boundedread.Process)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "fuse_connection:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 32)
			if err == nil {
				return uint32(n)
			}
		}
	}
	return 0
}

// Aborted reports whether the connection of the server has ended: its descriptor then has an error for poll(2). It distinguishes the
// servers of a connection that was aborted from others where the kernel has no number. false: not, or it cannot be read.
func (s Server) Aborted() bool {
	pidfd, err := procfs.OpenPidfd(s.PID, s.Start)
	if err != nil {
		return false
	}
	defer pidfd.Close() // It waits for Pass.
	var ended bool
	// A descriptor of a connection that is being made waits for its server (FUSE_DEV_IOC_SYNC_INIT).
	read := procfs.Within(s.PID, func() {
		_ = pidfd.Pass(func(fd int) error { // false where it cannot be read
			ended = connectionEnded(fd, s.fd)
			return nil
		})
	})
	return read && ended
}

// connectionEnded reports whether a descriptor of another process is one of a connection that has ended.
func connectionEnded(pidfd, fd int) bool {
	copied, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return false
	}
	defer unix.Close(copied) // A copy keeps the connection open.
	// Another file may have the number by now.
	if link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(copied)); err != nil || !strings.HasSuffix(link, "/fuse") {
		return false
	}
	poll := []unix.PollFd{{Fd: int32(copied)}}
	_, err = unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&unix.POLLERR != 0
}
