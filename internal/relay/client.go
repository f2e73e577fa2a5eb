package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The deadlines of the start of the program, and of one signal.
const (
	startTimeout  = 10 * time.Second
	signalTimeout = 5 * time.Second
	// retryAfter is how long a failed start counts for all signals: a stop signals many processes, one after the other.
	retryAfter = 10 * time.Second
)

// Client is the daemon's side. It starts the program for the first signal, and again when it has ended.
type Client struct {
	// Start starts the program with its standard input, and returns when it runs.
	Start func(ctx context.Context, stdin *os.File) error

	mu     sync.Mutex // guards what follows: one signal is sent at a time
	conn   *net.UnixConn
	failed error     // the last start
	tried  time.Time // when that was
}

// Signal sends a signal to the process of a pidfd. It returns the kernel's error, or why the program cannot send it.
func (c *Client) Signal(pidfd int, sig unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		errno, err := c.query(pidfd, sig)
		if err == nil {
			return result(errno)
		}
		c.closeLocked() // It ended, because there was nothing to send.
	}
	if c.failed != nil && time.Since(c.tried) < retryAfter {
		return c.failed
	}
	c.tried = time.Now()
	if c.failed = c.startLocked(); c.failed != nil {
		return c.failed
	}
	errno, err := c.query(pidfd, sig)
	if err != nil {
		c.failed = err
		c.closeLocked()
		return err
	}
	return result(errno)
}

func result(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func (c *Client) startLocked() error {
	local, remote, err := pair()
	if err != nil {
		return err
	}
	defer local.Close()
	defer remote.Close()
	conn, err := net.FileConn(local)
	if err != nil {
		return fmt.Errorf("cannot create a connection: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return fmt.Errorf("a %T carries no file", conn)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := c.Start(ctx, remote); err != nil {
		conn.Close()
		return err
	}
	c.conn = unixConn
	return nil
}

// query sends one message and reads its answer.
func (c *Client) query(pidfd int, sig unix.Signal) (unix.Errno, error) {
	if err := c.conn.SetDeadline(time.Now().Add(signalTimeout)); err != nil {
		return 0, err
	}
	if _, _, err := c.conn.WriteMsgUnix([]byte{byte(sig)}, unix.UnixRights(pidfd), nil); err != nil {
		return 0, err
	}
	answer := make([]byte, 1)
	n, err := c.conn.Read(answer)
	if err == nil && n != 1 {
		err = io.EOF
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it ended without an answer")
	}
	return unix.Errno(answer[0]), err
}

// Close ends the program.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeLocked()
}

func (c *Client) closeLocked() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}
