package hostile

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Lingering returns a TCP socket whose last close waits, in whole seconds, for a peer that reads nothing. The peer ends with the test.
func Lingering(tb testing.TB, limit time.Duration) *os.File {
	tb.Helper()
	f, peer, err := lingering(limit)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { peer.Close() })
	return f
}

func lingering(limit time.Duration) (f *os.File, peer net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	if peer, err = l.Accept(); err != nil {
		return nil, nil, err
	}
	if f, err = c.(*net.TCPConn).File(); err != nil {
		return nil, peer, err
	}
	fd := int(f.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, peer, err
	}
	for err == nil { // Both buffers are full then.
		_, err = unix.Write(fd, make([]byte, 64<<10))
	}
	if !errors.Is(err, unix.EAGAIN) {
		return nil, peer, err
	}
	wait := unix.Linger{Onoff: 1, Linger: int32(limit / time.Second)}
	// The wait of a close is that of a socket that blocks.
	return f, peer, errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &wait))
}

// lingers is how long what passing passes makes a close wait.
const lingers = time.Minute

// passing opens connections to a socket, and passes a lingering socket on each. It returns how many were passed: the kernel or the
// limits of connections may refuse the others.
func passing(connections, uid int, socket string) (passed int, err error) {
	if err := become(uid); err != nil {
		return 0, err
	}
	for range connections {
		f, peer, err := lingering(lingers)
		if err != nil {
			return passed, err
		}
		c, err := net.Dial("unix", socket)
		if err != nil {
			return passed, err
		}
		kept = append(kept, peer, c)
		if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte("G"), unix.UnixRights(int(f.Fd())), nil); err == nil {
			passed++
		}
		go f.Close() // It waits where this is the last descriptor.
	}
	return passed, nil
}

// kept are the connections of passing, open until it ends.
var kept []net.Conn

// Pass sends bytes with a descriptor, of which the caller keeps none. ErrRefused: the kernel lets none through.
func Pass(tb testing.TB, c *net.UnixConn, b []byte, file *os.File, flags int) error {
	tb.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	var sent error
	rights := unix.UnixRights(int(file.Fd()))
	if err := raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), b, rights, nil, flags|unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		return !errors.Is(sent, unix.EAGAIN)
	}); err != nil {
		tb.Fatal(err)
	}
	if sent != nil { // This is the last descriptor.
		_ = unix.SetsockoptLinger(int(file.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // It may be no socket.
	}
	closed := make(chan struct{})
	go func() { _ = file.Close(); close(closed) }() // It waits where it is the last descriptor already.
	select {
	case <-closed:
	case <-time.After(100 * time.Millisecond):
	}
	if errors.Is(sent, unix.EPERM) {
		return ErrRefused
	}
	return sent
}

// ErrRefused: the kernel refuses descriptors for this socket.
var ErrRefused = errors.New("the kernel refuses descriptors")
