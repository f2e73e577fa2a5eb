package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Waiting is a gpushare-start that waits for the word. Close it whatever happens: one that was told nothing then ends.
type Waiting struct {
	Process Process
	conn    net.Conn
	read    *bufio.Reader
}

// Pair makes the connection to a gpushare-start: our end, and the file that becomes its standard input. Both are closed by
// the caller, the second once it was passed on.
func Pair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "gpushare-start")
	f := os.NewFile(uintptr(fds[0]), "gpushare-start")
	defer f.Close()
	if ours, err = net.FileConn(f); err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("cannot make a connection: %w", err)
	}
	return ours, theirs, nil
}

// Meet waits until gpushare-start is there at the other end. It takes the connection over, also when it fails.
func Meet(ctx context.Context, conn net.Conn) (*Waiting, error) {
	w := &Waiting{conn: conn, read: bufio.NewReader(conn)}
	var h hello
	err := w.within(ctx, func() error { return w.line(&h) })
	switch {
	case err == nil && h.Failure != nil:
		err = h.Failure
	case errors.Is(err, io.EOF):
		err = errors.New("cannot start it: gpushare-start ended before it said a word")
	case err != nil:
		err = fmt.Errorf("cannot start it: gpushare-start says nothing: %w", err)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	w.Process = h.Process
	return w, nil
}

// Go gives the word and returns when the program runs, or a *Failure that says why it does not.
func (w *Waiting) Go(ctx context.Context, p *Program) error {
	var f Failure
	err := w.within(ctx, func() error {
		if err := json.NewEncoder(w.conn).Encode(p); err != nil {
			return err
		}
		return w.line(&f)
	})
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return nil // It executed: its end of the connection is closed by that.
	case err != nil:
		return fmt.Errorf("cannot start %s: %w", p.Path, err)
	}
	return &f
}

// Close lets go of the connection.
func (w *Waiting) Close() { w.conn.Close() }

func (w *Waiting) line(v any) error {
	b, err := w.read.ReadBytes('\n')
	if err != nil && len(b) == 0 {
		return err
	}
	return json.Unmarshal(b, v)
}

// within bounds a conversation by the context.
func (w *Waiting) within(ctx context.Context, talk func() error) error {
	stop := context.AfterFunc(ctx, func() { _ = w.conn.SetDeadline(time.Unix(1, 0)) }) // A closed one ends by itself.
	defer stop()
	if err := talk(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return nil
}
