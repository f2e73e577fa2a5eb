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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	peer, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { peer.Close() })
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		tb.Fatal(err)
	}
	fd := int(f.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		tb.Fatal(err)
	}
	for err == nil { // Both buffers are full then.
		_, err = unix.Write(fd, make([]byte, 64<<10))
	}
	if !errors.Is(err, unix.EAGAIN) {
		tb.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil { // The wait of a close is that of a socket that blocks.
		tb.Fatal(err)
	}
	if err := unix.SetsockoptLinger(
		fd,
		unix.SOL_SOCKET,
		unix.SO_LINGER,
		&unix.Linger{Onoff: 1, Linger: int32(limit / time.Second)},
	); err != nil {
		tb.Fatal(err)
	}
	return f
}

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
