package passed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// soPassrights is SO_PASSRIGHTS of asm-generic/socket.h, since Linux 6.16: 0 lets those fail who pass descriptors. What a listener has
// set its connections have from their first byte on.
const soPassrights = 83

// ErrPassed is the error of a read that would receive descriptors. The connection is of no use any more.
var ErrPassed = errors.New("the peer passes descriptors")

// Refuse lets the kernel refuse descriptors on a socket that has no peer yet: who passes some gets an error. It reports whether the
// kernel does: those before 6.16 cannot.
func Refuse(fd int) bool { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassrights, 0) == nil }

// Dial connects to a socket of a program that is not trusted: network is "unix" or "unixpacket".
func Dial(ctx context.Context, network, path string) (*Conn, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { return c.Control(func(fd uintptr) { Refuse(int(fd)) }) }}
	c, err := d.DialContext(ctx, network, path)
	if err != nil {
		return nil, err
	}
	return New(c.(*net.UnixConn))
}

// refuses reports whether the kernel refuses descriptors on a socket.
func refuses(fd int) bool {
	may, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPassrights)
	return err == nil && may == 0
}

// Conn is a connection of a peer that is not trusted. Its Read receives no descriptors, and its Close does not wait for any. Its other
// methods do not read.
type Conn struct {
	*net.UnixConn
	refused bool // by the kernel
}

// New takes over a connection, also when it fails.
func New(c *net.UnixConn) (*Conn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot access a connection: %w", err)
	}
	out := &Conn{UnixConn: c}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if out.refused = refuses(int(fd)); out.refused {
			return
		}
		// A byte out of band would be dropped by a read with what it carries, and is not seen before it.
		failed = os.NewSyscallError("setsockopt SO_OOBINLINE", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1))
	})
	if err = errors.Join(err, failed); err != nil {
		go c.Close() // It ends with what it waits for.
		return nil, fmt.Errorf("cannot prepare a connection: %w", err)
	}
	return out, nil
}

// Take makes a connection of the descriptor of a unix socket, which it takes over in any case.
func Take(fd int) (*Conn, error) {
	f := os.NewFile(uintptr(fd), "connection")
	c, err := net.FileConn(f)
	if err != nil {
		go f.Close() // It ends with what it waits for.
		return nil, fmt.Errorf("cannot use a connection: %w", err)
	}
	f.Close() // The connection has another descriptor.
	return New(c.(*net.UnixConn))
}

// Read reads as a connection does. It returns ErrPassed, and leaves them where they are, if there are descriptors in what it would read.
func (c *Conn) Read(b []byte) (n int, err error) {
	if c.refused || len(b) == 0 {
		return c.UnixConn.Read(b)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	if err := raw.Read(func(fd uintptr) bool {
		n, failed = receive(int(fd), b)
		return !errors.Is(failed, unix.EAGAIN)
	}); err != nil {
		return 0, err
	}
	if failed != nil && !errors.Is(failed, io.EOF) {
		return 0, &net.OpError{Op: "read", Net: "unix", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: failed}
	}
	return n, failed
}

// receive reads what is there, if nothing is passed with it.
func receive(fd int, b []byte) (int, error) {
	n, _, flags, _, err := unix.Recvmsg(fd, b, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	switch {
	case err != nil:
		return 0, err
	case flags&unix.MSG_CTRUNC != 0: // There is no place for what is passed, and a look drops nothing.
		return 0, ErrPassed
	case n == 0:
		return 0, io.EOF
	}
	// What has come since is behind these bytes.
	n, _, err = unix.Recvfrom(fd, b[:n], unix.MSG_DONTWAIT)
	return n, err
}

// Close closes the connection. It does not wait: what was passed is dropped on another thread.
func (c *Conn) Close() error {
	if c.refused {
		return c.UnixConn.Close()
	}
	last, err := c.duplicate()
	if err != nil {
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		go c.UnixConn.Close() // There is no free descriptor. This ends with what it waits for.
		return nil
	}
	defer Close(last)
	return c.UnixConn.Close()
}

// duplicate returns another descriptor of the connection: as long as it is open, closing the first one drops nothing.
func (c *Conn) duplicate() (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failed error
	err = raw.Control(func(conn uintptr) { fd, failed = unix.FcntlInt(conn, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, failed)
}
