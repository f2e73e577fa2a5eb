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

	once    sync.Once
	sending chan struct{} // has the one that sends: one signal is sent at a time, and guards what follows
	conn    *net.UnixConn
	failed  error     // the last start
	tried   time.Time // when that was
}

// take waits until no other signal is sent. give ends that.
func (c *Client) take(ctx context.Context) error {
	c.once.Do(func() { c.sending = make(chan struct{}, 1) })
	select {
	case c.sending <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

func ended(ctx context.Context) error { return fmt.Errorf("cannot send a signal: %w", ctx.Err()) }

func (c *Client) give() { <-c.sending }

// Signal sends a signal to the process of a pidfd. It returns the kernel's error, or why the program cannot send it. When ctx ends while
// it is sent, it may have been.
func (c *Client) Signal(ctx context.Context, pidfd int, sig unix.Signal) error {
	if err := c.take(ctx); err != nil {
		return err
	}
	defer c.give()
	if c.conn != nil {
		errno, err := c.query(ctx, pidfd, sig)
		if err == nil {
			return result(errno)
		}
		c.close() // It ended, because there was nothing to send; or its answer may still come.
		if ctx.Err() != nil {
			return ended(ctx)
		}
	}
	if c.failed != nil && time.Since(c.tried) < retryAfter {
		return c.failed
	}
	began := time.Now()
	err := c.start(ctx)
	if err == nil {
		var errno unix.Errno
		if errno, err = c.query(ctx, pidfd, sig); err == nil {
			c.failed = nil
			return result(errno)
		}
		c.close()
	}
	if ctx.Err() != nil { // That says nothing of the program.
		return ended(ctx)
	}
	c.failed, c.tried = err, began
	return err
}

func result(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func (c *Client) start(ctx context.Context) error {
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
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.Start(ctx, remote); err != nil {
		conn.Close()
		return err
	}
	c.conn = unixConn
	return nil
}

// query sends one message and reads its answer. After an error the connection is of no use.
func (c *Client) query(ctx context.Context, pidfd int, sig unix.Signal) (unix.Errno, error) {
	conn := c.conn
	if err := conn.SetDeadline(time.Now().Add(signalTimeout)); err != nil {
		return 0, err
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		_ = conn.SetDeadline(time.Unix(1, 0)) // It fails only on a closed one, which ends the query too.
	})
	defer func() {
		if !stop() {
			<-cut // so that this one cannot overwrite the deadline of a later query
		}
	}()
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
	_ = c.take(context.Background()) // It waits for one signal at most, which has deadlines.
	defer c.give()
	c.close()
}

func (c *Client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}
