package launch

import (
	"bytes"
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

// Pending is a gpushare-start that waits for the word. Close it whatever happens: one that was told nothing then ends.
type Pending struct {
	Process Process
	conn    net.Conn
	outcome *os.File // closes when the program runs, or carries the reason why it does not
}

// Pair makes the connection to a gpushare-start: our end, and the file that becomes its standard input. Both are closed by
// the caller, the second once it was passed on.
func Pair() (local net.Conn, remote *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	remote = os.NewFile(uintptr(fds[1]), "gpushare-start")
	f := os.NewFile(uintptr(fds[0]), "gpushare-start")
	defer f.Close()
	if local, err = net.FileConn(f); err != nil {
		remote.Close()
		return nil, nil, fmt.Errorf("cannot make a connection: %w", err)
	}
	return local, remote, nil
}

// Await waits until gpushare-start is there at the other end. It takes the connection over, also when it fails.
func Await(ctx context.Context, conn net.Conn) (*Pending, error) {
	w := &Pending{conn: conn}
	var h greeting
	err := within(ctx, func() error { return w.readGreeting(&h) }, conn)
	switch {
	case err == nil && h.Failure != nil:
		err = h.Failure
	case err == nil && w.outcome == nil:
		err = errors.New("cannot start it: gpushare-start is of another version")
	case errors.Is(err, io.EOF):
		err = errors.New("cannot start it: gpushare-start ended before it said a word")
	case err != nil:
		err = fmt.Errorf("cannot start it: gpushare-start says nothing: %w", err)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	w.Process = h.Process
	return w, nil
}

// Start gives the word and returns when the program runs, or a *Failure that says why it does not.
func (w *Pending) Start(ctx context.Context, p *Program) error {
	var f Failure
	err := within(ctx, func() error {
		if err := json.NewEncoder(w.conn).Encode(p); err != nil {
			return err
		}
		return json.NewDecoder(w.outcome).Decode(&f)
	}, w.conn, w.outcome)
	switch {
	case errors.Is(err, io.EOF):
		return nil // It executed: its end of the pipe is closed by that.
	case err != nil:
		return fmt.Errorf("cannot start %s: %w", p.Path, err)
	}
	return &f
}

// Close lets go of the connection.
func (w *Pending) Close() {
	w.conn.Close()
	if w.outcome != nil {
		w.outcome.Close()
	}
}

// readGreeting reads the first word, and takes the pipe that comes with it.
func (w *Pending) readGreeting(h *greeting) error {
	uc, ok := w.conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("a %T carries no file", w.conn)
	}
	var message []byte
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	for !bytes.HasSuffix(message, []byte("\n")) {
		n, oobn, _, _, err := uc.ReadMsgUnix(buf, oob)
		if err == nil && oobn > 0 {
			err = w.receivePipe(oob[:oobn])
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return err
		}
		if message = append(message, buf[:n]...); len(message) > maxGreeting {
			return errors.New("its first word has no end")
		}
	}
	return json.Unmarshal(message, h)
}

// maxGreeting bounds the first word.
const maxGreeting = 64 << 10

// receivePipe takes the pipe out of a message.
func (w *Pending) receivePipe(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return os.NewSyscallError("recvmsg", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return os.NewSyscallError("recvmsg", err)
		}
		for _, fd := range fds {
			if w.outcome != nil || unix.SetNonblock(fd, true) != nil { // so that a deadline ends a read
				unix.Close(fd)
				continue
			}
			w.outcome = os.NewFile(uintptr(fd), "the outcome")
		}
	}
	return nil
}

// within bounds a conversation by the context.
func within(ctx context.Context, talk func() error, ends ...interface{ SetDeadline(time.Time) error }) error {
	stop := context.AfterFunc(ctx, func() {
		for _, e := range ends {
			_ = e.SetDeadline(time.Unix(1, 0)) // One that is closed ends by itself.
		}
	})
	defer stop()
	if err := talk(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return nil
}
