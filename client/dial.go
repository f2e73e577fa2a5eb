package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// backlogTimeout is how long to wait for a connection while the daemon's backlog is full, because a user floods it.
const backlogTimeout = 10 * time.Second

// Dial connects to the daemon's socket. If the backlog is full, the kernel refuses a non-blocking connect with EAGAIN. Dial
// then waits in the kernel's queue, which is first come, first served; the daemon refuses connections of a user above the
// limit.
func Dial(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if !errors.Is(err, syscall.EAGAIN) {
		return c, err
	}
	type answer struct {
		c   net.Conn
		err error
	}
	done := make(chan answer, 1)
	go func() { // It ends with the wait, in 10 s at the most.
		c, err := queue(socket)
		done <- answer{c, err}
	}()
	select {
	case a := <-done:
		return a.c, a.err
	case <-ctx.Done():
		go func() { // It ends when the one above does.
			if a := <-done; a.err == nil {
				a.c.Close()
			}
		}()
		return nil, err
	}
}

// queue connects and waits for it.
func queue(socket string) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), socket)
	defer f.Close()
	wait := unix.NsecToTimeval(backlogTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	for end := time.Now().Add(backlogTimeout); ; {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		if !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		return nil, &net.OpError{
			Op:   "dial",
			Net:  "unix",
			Addr: &net.UnixAddr{Name: socket, Net: "unix"},
			Err:  os.NewSyscallError("connect", err),
		}
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("cannot use the connection: %w", err)
	}
	return c, nil
}
