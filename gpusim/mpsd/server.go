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

// mpsServer is the server process: it holds its clients' connections. It ends when it was told to drain and the last client
// has left, and not when its control daemon dies.
type mpsServer struct {
	cfg config
	log serverLog

	mu       sync.Mutex // guards what follows
	clients  map[int]*served
	draining bool
	idle     chan struct{} // closed once it drains and has no client
}

// served is one client that is connected.
type served struct {
	conn net.Conn
	gpu  string
}

func runServer(ctx context.Context, cfg config) int {
	control, err := fileConn(os.NewFile(3, "control"))
	if err != nil {
		return 1
	}
	s := &mpsServer{cfg: cfg, clients: map[int]*served{}, idle: make(chan struct{})}
	// Without waiting: with no reader there are no logs.
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

// serveControl serves the control daemon until it goes away, which changes nothing for the clients.
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
		case "terminate":
			answer := "no"
			if s.terminate(rest) {
				answer = "ok"
			}
			_, _ = control.Write([]byte(answer))
		}
	}
}

// add takes a client's connection over and answers it.
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
	s.clients[pid] = &served{conn: conn, gpu: gpu}
	s.mu.Unlock()
	s.log.line("New client %d connected", pid)
	w := welcome{server: int32(os.Getpid()), limit: limit, percent: share, pipe: s.cfg.pipeDir}
	if _, err := conn.Write(w.bytes()); err != nil {
		s.log.line("Client %d left while it was connecting", pid)
	}
	go func() {
		// It never says anything more: this ends when the client does.
		_, _ = receive(conn)
		conn.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.clients, pid)
		s.log.line("Client %d disconnected", pid)
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

// list is a line for each client, by pid. It is never empty, because an empty packet cannot be told from the end.
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

// terminate ends one client's use of the server.
func (s *mpsServer) terminate(pid string) bool {
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.clients[n]
	if ok {
		// The reader of the connection, and the client at its other end, both see it end.
		if uc, isUnix := c.conn.(*net.UnixConn); isUnix {
			_ = uc.CloseRead()
			_ = uc.CloseWrite()
		}
	}
	return ok
}
