package mps

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Errors of speaking to a control daemon.
var (
	ErrNoDaemon     = errors.New("no MPS control daemon is there")
	ErrUnresponsive = errors.New("the MPS control daemon does not answer")
)

// greeting is what a control daemon sends to whoever connects, before anything is asked.
const greeting = "OUTBHELL\x00"

// greetTimeout is for one socket. A healthy daemon greets within a millisecond.
const greetTimeout = time.Second

// greet connects to both sockets and waits for the greeting. It is the only probe that sees what keeps clients out: a
// daemon that hangs with some peer still lets others connect, and one whose control socket was unlinked still obeys its
// command line, which uses the other.
func greet(ctx context.Context, pipeDir string) error {
	for _, name := range []string{"control", "control_privileged"} {
		if err := greetSocket(ctx, filepath.Join(pipeDir, name)); err != nil {
			return err
		}
	}
	return nil
}

func greetSocket(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot connect to %s: %w", path, ErrNoDaemon)
	case err != nil:
		// A full backlog behind a daemon that accepts nobody ends here too.
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
	return nil
}
