package fronting

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/front"
	"github.com/gpushare/gpushare/internal/locks"
)

// line is a front that serves, with its control socket. A write to a socket says nothing of its reader, which may hang: the front
// acknowledges each connection that it took, in order, before it reads a byte of it.
type line struct {
	control *net.UnixConn
	process Process
	most    time.Duration // how long it may owe an acknowledgement

	writing chan struct{} // who put something there writes: a deadline belongs to one write
	hangs   chan struct{} // has something once it owes an acknowledgement for too long
	ended   chan struct{} // closed when there are no more acknowledgements

	mu   locks.Mutex[locks.Leaf] // guards what follows
	owed []chan struct{}         // the oldest first; each is closed when it is acknowledged
}

func newLine(control *net.UnixConn, p Process, most time.Duration) *line {
	return &line{
		control: control,
		process: p,
		most:    most,
		writing: make(chan struct{}, 1),
		hangs:   make(chan struct{}, 1),
		ended:   make(chan struct{}),
	}
}

// drain bounds the reading of what a front that was killed had acknowledged: it is there, or never comes.
const drain = time.Second

// errLost: the front ended before it took the connection, which another one can serve.
var errLost = errors.New("it ended before it took the connection")

// handOver passes a connection, and returns when the front has it.
func (l *line) handOver(ctx context.Context, client *net.UnixConn, uid int) (*net.UnixConn, error) {
	select {
	case l.writing <- struct{}{}:
	case <-l.ended:
		return nil, errLost
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	taken, own, err := l.send(ctx, client, uid)
	<-l.writing
	if err != nil {
		return nil, err
	}
	late := time.NewTimer(l.most)
	defer late.Stop()
	for {
		select {
		case <-taken:
			return own, nil
		case <-late.C:
			l.hang() // It is killed: ended is closed.
			continue
		case <-l.ended:
		case <-ctx.Done():
			err = ctx.Err()
		}
		break
	}
	select {
	case <-taken: // before the end
		return own, nil
	default:
	}
	_ = own.Close() // It was not used.
	if err == nil {
		err = errLost
	}
	return nil, err
}

// send writes one connection. taken is closed when it is acknowledged.
func (l *line) send(ctx context.Context, client *net.UnixConn, uid int) (taken chan struct{}, own *net.UnixConn, err error) {
	taken = make(chan struct{})
	l.mu.Lock()
	l.owed = append(l.owed, taken) // The acknowledgement may come before the write returns.
	l.mu.Unlock()
	_ = l.control.SetWriteDeadline(time.Now().Add(l.most)) // The write returns the error.
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		_ = l.control.SetWriteDeadline(time.Unix(1, 0))
	})
	own, err = front.HandOver(l.control, client, uid)
	if !stop() {
		<-stopped // The deadline must not be that of the next write.
	}
	if err == nil {
		return taken, own, nil
	}
	l.mu.Lock()
	l.owed = slices.DeleteFunc(l.owed, func(c chan struct{}) bool { return c == taken })
	l.mu.Unlock()
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.hang()
		return nil, nil, errLost
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) {
		return nil, nil, errLost
	}
	return nil, nil, err
}

// hang reports that the front does not take connections.
func (l *line) hang() {
	select {
	case l.hangs <- struct{}{}:
	default:
	}
}

// readTaken reads acknowledgements until the control socket ends.
func (l *line) readTaken() error {
	for {
		if err := front.AwaitTaken(l.control); err != nil {
			return fmt.Errorf("pid %d (gpushare-front) has ended: %w", l.process.PID(), err)
		}
		l.mu.Lock()
		unknown := len(l.owed) == 0
		if !unknown {
			close(l.owed[0])
			l.owed = l.owed[1:]
		}
		l.mu.Unlock()
		if unknown {
			return fmt.Errorf("pid %d (gpushare-front) acknowledged a connection that it did not get", l.process.PID())
		}
	}
}

// serve returns when the front does not serve any more, with the reason. Its callers return after stopped was called, and find another one.
func (l *line) serve(ctx context.Context, stopped func()) error {
	read := make(chan error, 1)
	go func() { read <- l.readTaken() }() // ends below
	var err error
	reads := true
	select {
	case <-l.process.Done():
		err = fmt.Errorf("pid %d (gpushare-front) has ended", l.process.PID())
	case err = <-read:
		reads = false
	case <-l.hangs:
		err = fmt.Errorf("pid %d (gpushare-front) has taken no connection for %v", l.process.PID(), l.most)
	case <-ctx.Done():
		err = ctx.Err()
	}
	stopped()
	_ = l.process.Kill() // It has ended, or does now.
	if reads {
		_ = l.control.SetReadDeadline(time.Now().Add(drain)) // What it took before its end is not passed to another one.
		<-read                                               //nolint:errcheck // It ends because the front does.
	}
	close(l.ended)
	return err
}
