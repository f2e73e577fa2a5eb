// Package server serves a virtual node on unix sockets: one for the shim of the vendor's library, one for CUDA contexts,
// one for control commands. It implements the wire formats and checks peers. The rules are in gpusim, the files in
// hostroot.
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
	"github.com/gpushare/gpushare/internal/durable"
)

// The sockets below run/gpusim of the host root.
const (
	NVMLSocket = "nvml.sock"
	CUDASocket = "cuda.sock"
	CtlSocket  = "ctl.sock"
)

// Dir returns the directory of the sockets in a host root.
func Dir(root string) string { return filepath.Join(root, "run", "gpusim") }

// Server serves one node.
type Server struct {
	node *gpusim.Node
	log  *slog.Logger
	// owner is the user who may change the node in addition to root, so that an ordinary user can run a node.
	owner uint32

	mu      sync.Mutex
	clients map[int]*process // by pid
	conns   map[net.Conn]struct{}
	wg      sync.WaitGroup
}

// process is the client of all connections of one process.
type process struct {
	client *gpusim.Client
	conns  int
}

// New returns a server.
func New(node *gpusim.Node, log *slog.Logger) *Server {
	return &Server{node: node, log: log, owner: uint32(os.Getuid()), clients: map[int]*process{}, conns: map[net.Conn]struct{}{}}
}

// Serve creates the sockets below the host root and serves until ctx ends. It calls ready when all three listen.
func (s *Server) Serve(ctx context.Context, root string, ready func()) error {
	dir := Dir(root)
	if err := durable.MakeDirectories(dir, 0o755); err != nil {
		return fmt.Errorf("cannot create socket directory: %w", err)
	}
	// A socket address has at most 107 characters: the sockets are created through the directory's descriptor.
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
		// Every user may connect; whether a caller may change the node depends on its uid.
		mode := os.FileMode(0o666)
		if name == CtlSocket {
			mode = 0o600
		}
		if err := os.Chmod(path, mode); err != nil {
			return fmt.Errorf("cannot set the mode of the socket: %w", err)
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

// closeAll closes every connection except one.
func (s *Server) closeAll(but net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c != but {
			_ = c.Close()
		}
	}
}

// peer returns the credentials of the peer.
func peer(conn *net.UnixConn) (*syscall.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot read peer: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(
		func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) },
	); err != nil {
		return nil, fmt.Errorf("cannot read peer: %w", err)
	}
	if credErr != nil {
		return nil, fmt.Errorf("cannot read peer: %w", credErr)
	}
	return &syscall.Ucred{Pid: cred.Pid, Uid: cred.Uid, Gid: cred.Gid}, nil
}

// client returns the client of a process, created at its first connection. The caller calls done at the end of the
// connection.
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

// nvml serves the calls of one thread of one process, one after the other. A waiting call ends with the connection.
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
				// The kernel finishes a started change also if the process ends.
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
