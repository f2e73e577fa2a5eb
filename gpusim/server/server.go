// Package server puts a virtual node behind unix sockets: one for the shim of the vendor's library, one for CUDA contexts,
// one for whoever directs the node. It knows the wire formats and peers; the rules are gpusim's, the files hostroot's.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/gpusim"
)

// The sockets, below run/gpusim of the host root.
const (
	NVMLSocket = "nvml.sock"
	CUDASocket = "cuda.sock"
	CtlSocket  = "ctl.sock"
)

// Dir gives the directory of the sockets in a host root.
func Dir(root string) string { return filepath.Join(root, "run", "gpusim") }

// Server serves one node.
type Server struct {
	node *gpusim.Node
	log  *slog.Logger
	// owner may change the node besides root, so that a node works for an ordinary user.
	owner uint32

	mu      sync.Mutex
	clients map[int]*process // by pid
	conns   map[net.Conn]struct{}
	wg      sync.WaitGroup
}

// process is the client that all connections of one process share.
type process struct {
	client *gpusim.Client
	conns  int
}

// New makes a server.
func New(node *gpusim.Node, log *slog.Logger) *Server {
	return &Server{node: node, log: log, owner: uint32(os.Getuid()), clients: map[int]*process{}, conns: map[net.Conn]struct{}{}}
}

// Serve makes the sockets below the host root and serves until ctx ends. ready is called when all three listen.
func (s *Server) Serve(ctx context.Context, root string, ready func()) error {
	dir := Dir(root)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot make socket directory: %w", err)
	}
	// An address has room for 107 characters: the sockets are made through the directory's descriptor.
	at, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot open socket directory: %w", err)
	}
	defer at.Close()
	serve := map[string]func(context.Context, *net.UnixConn){NVMLSocket: s.nvml, CUDASocket: s.cuda, CtlSocket: s.ctl}
	var listeners []*net.UnixListener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
		s.closeAll(nil)
		s.wg.Wait()
	}()
	for name, handle := range serve {
		path := filepath.Join(dir, name)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot replace socket: %w", err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", at.Fd(), name), Net: "unix"})
		if err != nil {
			return fmt.Errorf("cannot listen: %w", err)
		}
		listeners = append(listeners, l)
		// Everybody may ask; what a caller may change is decided by who it is.
		mode := os.FileMode(0o666)
		if name == CtlSocket {
			mode = 0o600
		}
		if err := os.Chmod(path, mode); err != nil {
			return fmt.Errorf("cannot open socket to others: %w", err)
		}
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			s.accept(ctx, l, handle)
		}()
	}
	ready()
	<-ctx.Done()
	return nil
}

func (s *Server) accept(ctx context.Context, l *net.UnixListener, handle func(context.Context, *net.UnixConn)) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				s.log.Error("accept failed", "error", err)
			}
			return
		}
		s.mu.Lock()
		s.conns[conn] = struct{}{}
		s.mu.Unlock()
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			defer s.removeConn(conn)
			handle(ctx, conn)
		}()
	}
}

func (s *Server) removeConn(conn net.Conn) {
	_ = conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

// closeAll ends every connection but one.
func (s *Server) closeAll(but net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c != but {
			_ = c.Close()
		}
	}
}

// peer says who is at the other end.
func peer(conn *net.UnixConn) (*syscall.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot read peer: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, fmt.Errorf("cannot read peer: %w", err)
	}
	if credErr != nil {
		return nil, fmt.Errorf("cannot read peer: %w", credErr)
	}
	return &syscall.Ucred{Pid: cred.Pid, Uid: cred.Uid, Gid: cred.Gid}, nil
}

// client gives the client of a process, made at its first connection; done is for the end of the connection.
func (s *Server) client(cred *syscall.Ucred) (c *gpusim.Client, done func()) {
	pid := int(cred.Pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.clients[pid]
	if p == nil {
		p = &process{client: s.node.NVML(pid, cred.Uid == 0 || cred.Uid == s.owner)}
		s.clients[pid] = p
	}
	p.conns++
	return p.client, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.conns--; p.conns == 0 {
			delete(s.clients, pid)
			p.client.Close()
		}
	}
}

// nvml serves one thread of one process: its calls, one after the other. A call that waits ends with the connection.
func (s *Server) nvml(ctx context.Context, conn *net.UnixConn) {
	cred, err := peer(conn)
	if err != nil {
		s.log.Error("nvml connection refused", "error", err)
		return
	}
	client, done := s.client(cred)
	defer done()
	serverCtx := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests := make(chan gpusim.Request)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer cancel()
		for {
			q, err := readRequest(conn)
			if err != nil {
				return
			}
			select {
			case requests <- q:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case q := <-requests:
			callCtx := ctx
			if gpusim.IsWrite(q.Func) {
				// The kernel finishes what it has begun, whether or not the process lives to see it.
				callCtx = serverCtx
			}
			if _, err := conn.Write(encodeReply(client.Call(callCtx, q))); err != nil {
				_ = conn.Close()
				return
			}
		case <-ctx.Done():
			_ = conn.Close() // ends the reader
			return
		}
	}
}
