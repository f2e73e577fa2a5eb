package mpsd

import (
	"errors"
	"net"
	"strconv"
	"strings"
)

// errnoNotReady is the CUDA error number of a client that connects while a server has a fatal fault.
const errnoNotReady = 807

// errFault is why a server accepts no client.
var errFault = errors.New("the server has a fatal fault")

// faultCommand is a command of the virtual node: the client with this pid has a fatal fault. On a GPU a wrong memory access
// causes one.
const faultCommand = "gpusim_fault"

// state is the server's state, as get_server_status prints it.
func (s *mpsServer) state() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faulted {
		return "FAULT"
	}
	return "ACTIVE"
}

// fault makes a client fault. All clients of the server lose their context. The server serves new ones again when all of these have
// ended.
func (s *mpsServer) fault(pid string) string {
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.clients[n]; err != nil || !ok {
		return "1"
	}
	s.faulted = true
	for _, l := range s.cfg.branch.faultLines(n) {
		s.log.line("%s", l)
	}
	for _, c := range s.clients {
		// Only the client's end: that of the server shows when the process has ended.
		if uc, ok := c.conn.(*net.UnixConn); ok {
			_ = uc.CloseWrite()
		}
	}
	return "0"
}

// fault makes a client of any server fault.
func (d *control) fault(pid string) string {
	for _, s := range d.servers {
		if !s.ready {
			continue
		}
		if answer, err := s.request("fault " + pid); err == nil && answer == "0" {
			return "0"
		}
	}
	return "1"
}

// state is the state of a ready server. One that does not answer any more is about to end.
func (s *server) state() string {
	answer, err := s.request("state")
	if err != nil {
		return "FAULT"
	}
	return answer
}
