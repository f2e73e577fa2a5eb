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
	"github.com/gpushare/gpushare/internal/procfs"
)

// Peer is who is at the other end of a connection, as the kernel tells.
type Peer struct {
	UID     int
	GID     int
	Groups  []int          // supplementary
	Process cgroup.Process // start time 0 when the process was gone already, or is another's by now
}

// PeerKey is the key of a connection's peer in the contexts of its requests.
type PeerKey struct{}

// withPeer is the server's ConnContext: credentials belong to the connection, not to a request.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	p, err := peerOf(c)
	if err != nil {
		return ctx // A request without a peer is refused.
	}
	return context.WithValue(ctx, PeerKey{}, p)
}

func peerFrom(ctx context.Context) (*Peer, bool) {
	p, ok := ctx.Value(PeerKey{}).(*Peer)
	return p, ok
}

// peerOf reads the credentials of who connected; find adds the process.
func peerOf(c net.Conn) (*Peer, error) {
	if capped, ok := c.(*cappedConn); ok {
		return capped.peer, nil
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("cannot tell the peer of a %T", c)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot reach the socket: %w", err)
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
		return nil, fmt.Errorf("cannot tell the peer: %w", err)
	}
	return &p, nil
}

// hasHungUp tells whether whoever connected is gone already, having asked nothing. Of a flood of connections thousands wait
// to be accepted that nobody waits at the other end of; what is real stands behind them.
func hasHungUp(c net.Conn) bool {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		n, _, e := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = n == 0 && e == nil
	})
	return err == nil && closed
}

// findProcess finds the peer's process. It costs several system calls, so a connection that is refused is spared it.
func (p *Peer) findProcess(c *net.UnixConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return // Then it has no process, and gets no lease.
	}
	_ = raw.Control(func(fd uintptr) {
		p.Process.Start = startOfPeer(func() (int, error) { return peerPidfd(int(fd), p.Process.PID) }, p.Process.PID, p.UID)
	})
}

// peerPidfd takes hold of the process that connected: by the descriptor that the kernel keeps with the connection, and
// where there is none (before Linux 6.5) by the pid, which may be another process by now.
func peerPidfd(conn, pid int) (int, error) {
	fd, err := unix.GetsockoptInt(conn, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return unix.PidfdOpen(pid, 0)
	}
	return fd, err
}

// startOfPeer gives the start time of the process that connected, 0 when it is gone. The credentials are of the time of
// the connect, and its pid may be somebody else's process by now: who had that one taken into a lease of theirs could
// stop it. So it is held while it is read, and must be the same user's.
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
		return 0 // It ended, so that what was read may be of another.
	}
	return start
}

// peerGroups reads the supplementary groups that the peer had when it connected; nil where the kernel does not tell.
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
