package worker

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpu"
)

const (
	// maxHungStarts is how many consecutive workers may hang at start before the driver counts as stuck.
	maxHungStarts = 2
	// minRestartPause and maxRestartPause bound the pause after a failed start, which doubles.
	minRestartPause = 200 * time.Millisecond
	maxRestartPause = 30 * time.Second
	// greetTimeout bounds the time from the connection to the token.
	greetTimeout = 2 * time.Second
)

// startAttempt is one attempt to start a worker.
type startAttempt struct {
	done chan struct{} // closed when err is set
	err  error
}

// stuckLocked reports whether the driver counts as stuck, so that no worker is started.
func (c *Client) stuckLocked() bool { return c.hungStarts >= maxHungStarts }

// session returns the live worker for an operation on id and starts one if there is none.
func (c *Client) session(ctx context.Context, info opInfo, id gpu.UUID) (*session, error) {
	for {
		c.mu.Lock()
		var refusal error
		switch {
		case c.closed:
			refusal = ErrClosed
		case c.parked:
			refusal = gpu.ErrParked
		case c.stuckLocked():
			refusal = gpu.ErrStuck
		case c.unresponsive[id] != "":
			refusal = fmt.Errorf("%w: %s before; the GPU is excluded until 'gpushare gpu retry'", gpu.ErrTimeout, c.unresponsive[id])
		case c.current != nil && c.excludesRetriedLocked(c.current):
			c.retireLocked(c.current)
			c.mu.Unlock()
			continue
		case c.current != nil:
			s := c.current
			c.mu.Unlock()
			return s, nil
		case c.starting == nil && time.Now().Before(c.retryAt):
			refusal = c.startError
		}
		if refusal != nil {
			c.mu.Unlock()
			return nil, c.refused(info, id, refusal)
		}
		st := c.starting
		if st == nil {
			st = &startAttempt{done: make(chan struct{})}
			c.starting = st
			c.goroutines.Go(func() { c.run(st) })
		}
		c.mu.Unlock()
		if !wait(ctx, st.done) {
			return nil, c.fail(info, id, ctx.Err())
		}
		if st.err != nil {
			return nil, c.refused(info, id, st.err)
		}
	}
}

// refused returns the error of an operation that no worker accepts. An error of the driver at the start keeps its code.
func (c *Client) refused(info opInfo, id gpu.UUID, err error) error {
	var e *gpu.Error
	if errors.As(err, &e) {
		return &gpu.Error{Op: info.verb, GPU: id, Code: e.Code, Err: e.Err}
	}
	return c.fail(info, id, err)
}

// excludesRetriedLocked reports whether s was started without a GPU that is no longer excluded.
func (c *Client) excludesRetriedLocked(s *session) bool {
	for _, id := range s.excluded {
		if c.unresponsive[id] == "" {
			return true
		}
	}
	return false
}

// run makes one attempt and stores its result.
func (c *Client) run(st *startAttempt) {
	ctx, cancel := within(c.ctx, c.o.Deadlines.Start)
	defer cancel()
	s, node, err := c.launch(ctx)
	if err == nil {
		c.stats.with(func(st *Stats) { st.Starts++ })
		c.o.Log.Info(
			"the GPU worker is ready", "pid", s.proc.PID(), "driver", node.DriverVersion, "gpus", len(node.GPUs), "excluded",
			s.excluded,
		)
	}
	c.mu.Lock()
	c.starting = nil
	if end := c.endedLocked(); err == nil && end != nil {
		err = end
		c.dropLocked(s, err)
		s.conn.Close()
	}
	if err == nil && s.ended {
		err = fmt.Errorf("%w: the worker ended right after its start", gpu.ErrUnknown)
	}
	st.err = err
	switch {
	case err == nil:
		c.current = s
		c.hungStarts, c.failedStarts, c.startError, c.retryAt = 0, 0, nil, time.Time{}
		c.rememberLocked(node.GPUs)
	default:
		c.startError = err
		pause := min(minRestartPause<<min(c.failedStarts, 16), maxRestartPause)
		c.failedStarts++
		if !errors.Is(err, gpu.ErrTimeout) { // hung starts have their own limit
			c.retryAt = time.Now().Add(pause)
		}
	}
	c.mu.Unlock()
	close(st.done)
	if err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, gpu.ErrParked) {
		c.o.Log.Error("cannot start the GPU worker", "err", err)
	}
}

// launch starts one worker, waits for its connection and reads the node, which opens the driver.
func (c *Client) launch(ctx *bounded) (*session, gpu.NodeInfo, error) {
	var node gpu.NodeInfo
	c.mu.Lock()
	excluded := c.unresponsiveLocked()
	c.mu.Unlock()

	token := newToken()
	conns := make(chan net.Conn, 1)
	c.expect(token, conns)
	defer c.unexpect(token, conns)
	proc, err := c.o.Launcher.Launch(ctx, "gpushare-nvml-"+token[:8], c.argv(token, excluded), c.o.Env)
	if err != nil {
		return nil, node, fmt.Errorf("%w: %w", gpu.ErrUnknown, err)
	}
	s := &session{proc: proc, excluded: excluded, pending: make(map[uint64]*pending)}
	select {
	case s.conn = <-conns:
	case <-proc.Done():
		return nil, node, fmt.Errorf("%w: the worker ended before it connected", gpu.ErrUnknown)
	case <-ctx.Done():
		c.kill(proc)
		if c.ctx.Err() != nil {
			return nil, node, ErrClosed
		}
		c.mu.Lock()
		c.hungStarts++
		c.mu.Unlock()
		return nil, node, fmt.Errorf("%w: the worker did not connect", gpu.ErrTimeout)
	}
	c.mu.Lock()
	c.live[s] = true
	c.mu.Unlock()
	c.goroutines.Go(func() {
		c.receive(s)
		c.mu.Lock()
		delete(c.live, s)
		c.mu.Unlock()
	})

	info := operations[OpNode]
	p := c.send(s, OpNode, info, "", nil, max(ctx.left(), time.Millisecond), false, nil, nil)
	if !wait(c.ctx, p.done) {
		c.mu.Lock()
		c.dropLocked(s, ErrClosed)
		c.mu.Unlock()
		s.conn.Close()
		return nil, node, ErrClosed
	}
	if p.err != nil {
		if errors.Is(p.err, errCrashed) {
			return nil, node, fmt.Errorf("%w: the worker ended while it opened the driver", gpu.ErrUnknown)
		}
		return nil, node, p.err // overdue abandoned the worker and counted it
	}
	if p.reply.Error != nil {
		c.mu.Lock()
		c.dropLocked(s, errRetired)
		c.mu.Unlock()
		s.conn.Close() // the worker exits then
		return nil, node, p.reply.Error.decode()
	}
	if err := json.Unmarshal(p.reply.Result, &node); err != nil {
		c.mu.Lock()
		c.dropLocked(s, errRetired)
		c.mu.Unlock()
		s.conn.Close()
		return nil, node, fmt.Errorf("%w: cannot decode the worker's node: %w", gpu.ErrUnknown, err)
	}
	return s, node, nil
}

// argv is the command line of one worker. Other users can read the token in /proc: it only rejects workers of a previous
// start. The check of the peer rejects processes of other users.
func (c *Client) argv(token string, excluded []gpu.UUID) []string {
	argv := append([]string{}, c.o.Command...)
	argv = append(argv, "--connect", filepath.Join(c.o.RunDir, socketName), "--token", token)
	if c.o.Library != "" {
		argv = append(argv, "--library", c.o.Library)
	}
	if c.o.HostRoot != "" {
		argv = append(argv, "--host-root", c.o.HostRoot)
	}
	for _, id := range excluded {
		argv = append(argv, "--exclude", string(id))
	}
	return argv
}

// expect registers the start that waits for the worker with this token.
func (c *Client) expect(token string, conns chan<- net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaited[token] = conns
}

// unexpect removes the registration and closes a late connection.
func (c *Client) unexpect(token string, conns <-chan net.Conn) {
	c.mu.Lock()
	delete(c.awaited, token)
	c.mu.Unlock()
	select {
	case late := <-conns:
		late.Close()
	default:
	}
}

// accept accepts connections until the listener is closed.
func (c *Client) accept() {
	for {
		conn, err := c.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			c.o.Log.Warn("cannot accept a worker", "err", err)
			pause := time.NewTimer(minRestartPause) // for example, there is no free file descriptor
			select {
			case <-pause.C:
			case <-c.ctx.Done():
			}
			pause.Stop()
			continue
		}
		c.goroutines.Go(func() {
			if err := c.greet(conn); err != nil {
				c.o.Log.Warn("refused a connection on the worker socket", "err", err)
				conn.Close()
			}
		})
	}
}

// greet checks the peer of conn and passes conn to the start that waits for it.
func (c *Client) greet(conn net.Conn) error {
	if err := checkPeer(conn); err != nil {
		return err
	}
	stop := context.AfterFunc(c.ctx, func() { conn.Close() })
	defer stop()
	if err := conn.SetReadDeadline(time.Now().Add(greetTimeout)); err != nil {
		return err
	}
	var h hello
	if err := readFrame(conn, &h); err != nil {
		return fmt.Errorf("cannot read the greeting: %w", err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	return c.admit(h, conn)
}

// admit passes conn to the start that waits for its token.
func (c *Client) admit(h hello, conn net.Conn) error {
	if h.Protocol != protocol {
		return fmt.Errorf("cannot admit the worker: its protocol version is %d, not %d", h.Protocol, protocol)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for token, conns := range c.awaited {
		if subtle.ConstantTimeCompare([]byte(token), []byte(h.Token)) != 1 {
			continue
		}
		delete(c.awaited, token)
		conns <- conn // has capacity for one
		return nil
	}
	return errors.New("cannot admit the worker: its token is not expected")
}

// checkPeer refuses peers of another user: only root and the daemon's user start workers.
func checkPeer(conn net.Conn) error {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("cannot check the peer: not a unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot check the peer: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return fmt.Errorf("cannot check the peer: %w", err)
	}
	if credErr != nil {
		return fmt.Errorf("cannot check the peer: %w", credErr)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("cannot admit the worker: pid %d belongs to user %d", cred.Pid, cred.Uid)
	}
	return nil
}
