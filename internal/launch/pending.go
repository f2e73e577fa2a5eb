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

// Pending is a gpushare-start that waits for its program. Close it in any case: without a program it then ends.
type Pending struct {
	Process Process
	Warning string // of Start: what the program lacks of its caller
	conn    net.Conn
	outcome *os.File // closes when the program runs, or carries the reason of the failure
}

// Pair creates the connection to a gpushare-start: the daemon's end, and the file that becomes its standard input. The
// caller closes both, the second after passing it on.
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
		return nil, nil, fmt.Errorf("cannot create a connection: %w", err)
	}
	return local, remote, nil
}

// Await waits until gpushare-start sends its greeting. It takes over the connection, also when it fails.
func Await(ctx context.Context, conn net.Conn) (*Pending, error) {
	w := &Pending{conn: conn}
	var h greeting
	err := within(ctx, func() error { return w.readGreeting(&h) }, conn)
	switch {
	case err == nil && h.Failure != nil:
		err = h.Failure
	case err == nil && w.outcome == nil:
		err = errors.New("cannot start it: gpushare-start has another version")
	case errors.Is(err, io.EOF):
		err = errors.New("cannot start it: gpushare-start ended without a message")
	case err != nil:
		err = fmt.Errorf("cannot start it: no message from gpushare-start: %w", err)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	w.Process = h.Process
	return w, nil
}

// Start sends the program and returns when it runs, or returns a *Failure with the reason why it does not.
func (w *Pending) Start(ctx context.Context, p *Program) error {
	var f Failure
	err := within(ctx, func() error {
		if err := json.NewEncoder(w.conn).Encode(p); err != nil {
			return err
		}
		for outcome := json.NewDecoder(w.outcome); ; {
			f = Failure{}
			if err := outcome.Decode(&f); err != nil || f.Warning == "" {
				return err
			}
			w.Warning = f.Warning
		}
	}, w.conn, w.outcome)
	switch {
	case errors.Is(err, io.EOF):
		return nil // The program was executed, which closed its end of the pipe.
	case err != nil:
		return fmt.Errorf("cannot start %s: %w", p.Path, err)
	}
	return &f
}

// Close closes the connection.
func (w *Pending) Close() {
	w.conn.Close()
	if w.outcome != nil {
		w.outcome.Close()
	}
}

// readGreeting reads the greeting, and receives the pipe that comes with it.
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
			return errors.New("its greeting is too long")
		}
	}
	return json.Unmarshal(message, h)
}

// maxGreeting bounds the greeting.
const maxGreeting = 64 << 10

// receivePipe receives the pipe of a message.
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

// within bounds the exchange of messages by the context.
func within(ctx context.Context, talk func() error, ends ...interface{ SetDeadline(time.Time) error }) error {
	stop := context.AfterFunc(ctx, func() {
		for _, e := range ends {
			_ = e.SetDeadline(time.Unix(1, 0)) // A closed end needs no deadline.
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
