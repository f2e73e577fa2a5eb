package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxClients is the most clients that the server of a control daemon has, by the version of its program; 0 without one.
func (s *State) MaxClients() int {
	if s == nil {
		return 0
	}
	can, _ := s.Program.Abilities()
	return can.MaxClients
}

// errBusy says that the clients of a control daemon cannot be read now.
var errBusy = errors.New("it is being started, stopped or read")

// Clients reads the clients of the MPS server of a device now. A client is listed before it has a context. So a process that had a
// context before the call and is not listed is no client.
func (s *Supervisor) Clients(ctx context.Context, on Device) ([]int, error) {
	w := s.gpuState(on)
	if !w.mu.TryLock() {
		return nil, fmt.Errorf("cannot read the clients of MPS: %w", errBusy)
	}
	defer w.mu.Unlock()
	l := s.layout(on)
	rec := l.readRecord()
	if rec == nil {
		return nil, fmt.Errorf("cannot read the clients of MPS: %w", ErrNoDaemon)
	}
	if err := s.greet(ctx, l, w, rec); err != nil {
		return nil, err
	}
	var clients []int
	if err := s.query(w, l, clientsListQuery, func(c control) (err error) {
		servers := w.reading.servers
		if len(servers) == 0 || w.read.IsZero() || !w.knowsServers() { // The kernel may not list children.
			if servers, err = c.servers(ctx); err != nil {
				return err
			}
		}
		clients, err = c.clients(ctx, servers)
		return err
	}); err != nil {
		return nil, err
	}
	now := s.Now()
	w.faults.ended(w.reading.clients, clients, now)
	if len(w.reading.clients) > 0 && len(clients) == 0 {
		w.reread.Store(true) // It may be a fault.
		s.watch.checkAt(on, now)
	}
	w.reading.clients = clients // The next observation has them too.
	return slices.Clone(clients), nil
}

func (c control) servers(ctx context.Context) ([]int, error) {
	out, err := c.query(ctx, "get_server_list")
	if err != nil {
		return nil, err
	}
	return parsePIDs(out)
}

// clients reads the clients of all servers. It fails if a server did not answer.
func (c control) clients(ctx context.Context, servers []int) ([]int, error) {
	if len(servers) == 0 {
		return nil, nil
	}
	var queries []string
	for _, server := range servers {
		queries = append(queries, clientsQuery(server))
	}
	out, err := c.query(ctx, strings.Join(queries, "\n"))
	if err != nil {
		return nil, err
	}
	return parseClients(out, len(servers))
}

// clientsQuery queries the clients of one server between two queries that every server answers with a percentage. A server that
// is busy has an empty answer to each, as a server without clients has to the one for its clients.
func clientsQuery(pid int) string {
	return fmt.Sprintf("get_active_thread_percentage %d\nget_client_list %[1]d\nget_active_thread_percentage %[1]d", pid)
}

// parseClients parses the answers to clientsQuery for some servers: the clients, ascending.
func parseClients(out []byte, servers int) ([]int, error) {
	var pids [][]byte
	answers := 0
	for line := range bytes.SplitSeq(out, []byte("\n")) {
		word := trim(line)
		if bytes.Contains(word, []byte(".")) { // "100.0"; a pid has no decimals.
			if _, err := parsePercent(word); err != nil {
				return nil, err
			}
			answers++
			continue
		}
		if bytes.HasPrefix(word, []byte("Server ")) && bytes.HasSuffix(word, []byte(" not found")) {
			return nil, errors.New("a server of MPS has ended while its clients were read")
		}
		pids = append(pids, word)
	}
	if answers != 2*servers {
		return nil, errors.New("a server of MPS is busy")
	}
	clients, err := parsePIDs(bytes.Join(pids, []byte("\n")))
	slices.Sort(clients)
	return clients, err
}
