package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// Peer is the process at the other end of a connection, as the kernel reports it.
type Peer struct {
	UID     int
	GID     int
	Groups  []int             // supplementary
	Process cgroup.Process    // start time 0: the process has exited, or its pid was reused
	Login   procfs.AuditLogin // who logged in
	// AsEngine: a request asks for the role engine, and for no other that its caller has. An administrator may have it.
	AsEngine bool
}

// PeerKey is the key of a connection's peer in the contexts of its requests.
type PeerKey struct{}

// withPeer is the server's ConnContext: credentials belong to the connection, not to a request.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	p, err := peerOf(c)
	if err != nil {
		return ctx // A request without a peer is refused.
	}
	ctx = context.WithValue(ctx, PeerKey{}, p)
	switch c.(type) {
	case *cappedConn:
		return context.WithValue(ctx, wayKey{}, direct)
	case *frontConn:
		return context.WithValue(ctx, wayKey{}, throughFront)
	}
	return ctx
}

func peerFrom(ctx context.Context) (*Peer, bool) {
	p, ok := ctx.Value(PeerKey{}).(*Peer)
	return p, ok
}

// peerOf reads the credentials of the connection; findProcess adds the process.
func peerOf(c net.Conn) (*Peer, error) {
	switch c := c.(type) {
	case *cappedConn:
		return c.peer, nil
	case *frontConn:
		return c.from.peer, nil
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("cannot read the peer of a %T", c)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot access the socket: %w", err)
	}
	var p Peer
	var inner error
	err = raw.Control(func(fd uintptr) {
		cred, e := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if e != nil {
			inner = os.NewSyscallError("getsockopt SO_PEERCRED", e)
			return
		}
		p = Peer{UID: int(cred.Uid), GID: int(cred.Gid), Groups: peerGroups(int(fd))}
		p.Process.PID = int(cred.Pid)
	})
	if err == nil {
		err = inner
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the peer: %w", err)
	}
	return &p, nil
}

// hasHungUp reports whether the client has closed the connection without a request. In a flood of connections thousands of
// closed ones wait to be accepted before the first open one.
func hasHungUp(fd int) bool {
	n, _, err := unix.Recvfrom(fd, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n == 0 && err == nil
}

// findProcess finds the peer's process. It costs several system calls, so it is not called for a refused connection.
func (p *Peer) findProcess(c *net.UnixConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return // Without a process it gets no lease.
	}
	_ = raw.Control(func(fd uintptr) {
		p.Process.Start = startOfPeer(func() (int, error) { return peerPidfd(int(fd), p.Process.PID) }, p.Process.PID, p.UID)
	})
	p.Login = loginOf(p.Process)
}

// loginOf reads the login of a process; the zero value if it has exited.
func loginOf(p cgroup.Process) procfs.AuditLogin {
	if p.Start == 0 {
		return procfs.AuditLogin{}
	}
	login, err := procfs.AuditLoginOf(p.PID)
	// It was read by pid. It is of this process if that has the pid afterwards.
	if start, serr := procfs.Start(p.PID); err != nil || serr != nil || start != p.Start {
		return procfs.AuditLogin{}
	}
	return login
}

// peerPidfd opens a pidfd of the process that connected: from the connection (SO_PEERPIDFD, Linux 6.5), and on older kernels
// by the pid, which may be another process by now.
func peerPidfd(conn, pid int) (int, error) {
	fd, err := unix.GetsockoptInt(conn, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return unix.PidfdOpen(pid, 0)
	}
	return fd, err
}

// startOfPeer returns the start time of the process that connected, 0 when it has exited. The credentials are from the
// time of the connect, and the pid may be reused since: a caller who put such a process of another user into their lease
// could stop it. So a pidfd is open while the process is read, and it must belong to the same user.
func startOfPeer(openPidfd func() (int, error), pid, uid int) uint64 {
	fd, err := openPidfd()
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	start, err := procfs.Start(pid)
	if err != nil {
		return 0
	}
	if owner, err := procfs.EUID(pid); err != nil || int(owner) != uid {
		return 0
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); err != nil || n != 0 {
		return 0 // It has exited, so the values may be of another process.
	}
	return start
}

// peerGroups reads the supplementary groups that the peer had when it connected; nil where the kernel does not report them.
func peerGroups(fd int) []int {
	for n := 64; n <= 1<<16; n *= 8 {
		buf := make([]uint32, n)
		size := uint32(n * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			groups := make([]int, size/4)
			for i := range groups {
				groups[i] = int(buf[i])
			}
			return groups
		case unix.ERANGE:
			continue
		default:
			return nil
		}
	}
	return nil
}

func (p *Peer) inGroup(gid int) bool {
	return gid >= 0 && (p.GID == gid || slices.Contains(p.Groups, gid))
}
