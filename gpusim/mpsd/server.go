package mpsd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// mpsServer is the server process, with the connections of its clients. It ends after a drain request when the last
// client has ended. It does not end with its control daemon.
type mpsServer struct {
	cfg config
	log serverLog

	mu       sync.Mutex // guards what follows
	clients  map[int]*served
	draining bool
	faulted  bool          // a client had a fatal fault, and clients of that time still run
	idle     chan struct{} // closed when it drains and has no client
}

// served is one connected client.
type served struct {
	conn net.Conn
	gpu  string
}

func runServer(ctx context.Context, cfg config) int {
	control, err := fileConn(os.NewFile(3, "control"))
	if err != nil {
		return 1
	}
	s := &mpsServer{cfg: cfg, log: serverLog{branch: cfg.branch}, clients: map[int]*served{}, idle: make(chan struct{})}
	// Non-blocking: without a reader there is no log.
	if f, err := os.OpenFile(filepath.Join(cfg.pipeDir, "log"), os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
		s.log.fifo = f
	}
	s.log.line("Startup")
	s.log.line("Connecting to control daemon on socket: %s/control", cfg.pipeDir)
	s.log.line("Initializing server process")
	if code := cfg.initCUDA(ctx); code != 0 {
		s.log.line("Driver initialization failed with: no CUDA-capable device is detected")
		s.log.line("Failed to start : no CUDA-capable device is detected")
		return 1
	}
	s.log.line("Server has started")
	if _, err := control.Write([]byte("ready")); err != nil {
		return 1
	}
	go s.serveControl(control)
	select {
	case <-s.idle:
		return 0
	case <-ctx.Done():
		return exitTerm
	}
}

// serveControl serves the control daemon until the daemon ends. Clients are not affected by that.
func (s *mpsServer) serveControl(control *net.UnixConn) {
	b, oob := make([]byte, maxText), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := control.ReadMsgUnix(b, oob)
		if err != nil || n == 0 {
			return
		}
		request, rest, _ := strings.Cut(string(b[:n]), " ")
		switch request {
		case "client":
			if err := s.add(rest, oob[:oobn]); err != nil {
				s.log.line("Failed to accept new client: %v", err)
			}
		case "drain":
			s.mu.Lock()
			s.draining = true
			s.endLocked()
			s.mu.Unlock()
		case "list":
			_, _ = control.Write([]byte(s.list()))
		case "state":
			_, _ = control.Write([]byte(s.state()))
		case "fault":
			_, _ = control.Write([]byte(s.fault(rest)))
		case "terminate":
			answer := "no"
			if s.terminate(rest) {
				answer = "ok"
			}
			_, _ = control.Write([]byte(answer))
		}
	}
}

// add accepts a client's connection from the control daemon and answers the client.
func (s *mpsServer) add(request string, oob []byte) error {
	var pid int
	var limit uint64
	var share float64
	var gpu string
	if _, err := fmt.Sscanf(request, "%d %d %g %q", &pid, &limit, &share, &gpu); err != nil {
		return err
	}
	conn, err := receivedConn(oob)
	if err != nil {
		return err
	}
	s.mu.Lock()
	faulted := s.faulted
	if !faulted {
		s.clients[pid] = &served{conn: conn, gpu: gpu}
	}
	s.mu.Unlock()
	if faulted {
		_, _ = conn.Write(welcome{errno: errnoNotReady}.bytes())
		conn.Close()
		return errFault
	}
	s.log.line("New client %d connected", pid)
	w := welcome{server: int32(os.Getpid()), limit: limit, percent: share, pipe: s.cfg.pipeDir}
	if _, err := conn.Write(w.bytes()); err != nil {
		s.log.line("Client %d left while it was connecting", pid)
	}
	go func() {
		// The client sends nothing more: the read returns when the client ends.
		_, _ = receive(conn)
		conn.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.clients, pid)
		s.log.line("Client %d disconnected", pid)
		if s.faulted && len(s.clients) == 0 {
			s.faulted = false
		}
		s.endLocked()
	}()
	return nil
}

func receivedConn(oob []byte) (net.Conn, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errPeer, err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errPeer, err)
	}
	unix.CloseOnExec(fds[0])
	return fileConn(os.NewFile(uintptr(fds[0]), "client"))
}

func (s *mpsServer) endLocked() {
	if s.draining && len(s.clients) == 0 {
		select {
		case <-s.idle:
		default:
			close(s.idle)
		}
	}
}

// list returns a line for each client, by pid. It is never empty, because an empty packet looks like the end of the
// connection.
func (s *mpsServer) list() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	pids := make([]int, 0, len(s.clients))
	for pid := range s.clients {
		pids = append(pids, pid)
	}
	sort.Ints(pids)
	var b strings.Builder
	for _, pid := range pids {
		fmt.Fprintf(&b, "%d %s\n", pid, s.clients[pid].gpu)
	}
	b.WriteString("\n")
	return b.String()
}

// terminate ends the connection of one client.
func (s *mpsServer) terminate(pid string) bool {
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.clients[n]
	if ok {
		// Both the reader of the connection and the client notice the end.
		if uc, isUnix := c.conn.(*net.UnixConn); isUnix {
			_ = uc.CloseRead()
			_ = uc.CloseWrite()
		}
	}
	return ok
}
