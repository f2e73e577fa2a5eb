package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/passed"
)

// Errors of the communication with a control daemon.
var (
	ErrNoDaemon     = errors.New("no MPS control daemon runs there")
	ErrUnresponsive = errors.New("the MPS control daemon does not answer")
)

// greeting is what a control daemon sends on every new connection.
const greeting = "OUTBHELL\x00"

// greetTimeout limits the wait at one socket. A healthy daemon greets within a millisecond.
const greetTimeout = time.Second

// greet connects to both sockets and waits for the greeting. Only this probe detects that clients cannot join: a daemon that
// hangs on one connection still accepts others, and a daemon whose control socket was unlinked still answers the control
// program, which uses the other socket.
func greet(ctx context.Context, pipeDir string) error {
	return greetWithin(ctx, pipeDir, greetTimeout)
}

// greetWithin is greet with another timeout for each socket.
func greetWithin(ctx context.Context, pipeDir string, timeout time.Duration) error {
	for _, name := range []string{"control", "control_privileged"} {
		if err := greetSocket(ctx, filepath.Join(pipeDir, name), timeout, nil); err != nil {
			return err
		}
	}
	return nil
}

// greetClients is greet with the greeting of the clients' socket only: the same thread of the daemon serves both, and each greeting
// costs two lines of its log. held, if it is not nil, is called after the greeting: the daemon serves no other until it returns.
func greetClients(ctx context.Context, pipeDir string, held func()) error {
	path := filepath.Join(pipeDir, "control_privileged")
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("there is no socket at %s: %w", path, ErrNoDaemon)
	}
	return greetSocket(ctx, filepath.Join(pipeDir, "control"), greetTimeout, held)
}

func greetSocket(ctx context.Context, path string, timeout time.Duration, held func()) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := passed.Dial(ctx, "unixpacket", path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot connect to %s: %w", path, ErrNoDaemon)
	case err != nil:
		// Also when the backlog is full because the daemon accepts no connections.
		return fmt.Errorf("cannot connect to %s: %w (%w)", path, ErrUnresponsive, err)
	}
	defer c.Close()
	if t, ok := ctx.Deadline(); ok {
		if err := c.SetReadDeadline(t); err != nil {
			return fmt.Errorf("cannot wait for a greeting at %s: %w", path, err)
		}
	}
	b := make([]byte, 64)
	n, err := c.Read(b)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no greeting at %s: %w", path, ErrUnresponsive)
	case err != nil:
		return fmt.Errorf("no greeting at %s: %w (%w)", path, ErrUnresponsive, err)
	case string(b[:n]) != greeting:
		return fmt.Errorf("%s greets with %q: %w", path, b[:n], ErrUnresponsive)
	}
	if held != nil {
		held()
	}
	return nil
}
