package server

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// errHungUp means that the caller does not wait any more.
var errHungUp = errors.New("the caller has closed the connection")

// whileConnected returns a context that ends when the caller closes the connection, with errHungUp. stop ends the watch, and must be called
// before another process gets the connection. The runtime wakes the watch when something happens to the connection, and nothing is read
// of it: what has arrived is for the front.
func whileConnected(ctx context.Context, c *net.UnixConn) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	raw, err := c.SyscallConn()
	if err != nil {
		return ctx, func() { cancel(nil) }
	}
	ended := make(chan struct{})
	go func() { // ends with stop, or when the caller has closed it
		defer close(ended)
		if raw.Read(func(fd uintptr) bool { return isClosed(int(fd)) }) == nil {
			cancel(errHungUp)
		}
	}()
	return ctx, func() {
		cancel(nil)
		_ = c.SetReadDeadline(time.Unix(1, 0)) // Of a closed one the watch has ended.
		<-ended
		_ = c.SetReadDeadline(time.Time{})
	}
}

// isClosed reports whether both directions of a connection are closed. A caller that only has no more to send waits for its answer.
func isClosed(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}} // The kernel reports the end without being asked for it.
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}
