package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/mps"
)

// errBusy says that the clients of a control daemon cannot be read now.
var errBusy = errors.New("it is being started, stopped or read")

// Clients reads the clients of the MPS server of a device now. A client is listed before it has a context. So a process that had a
// context before the call and is not listed is no client.
func (s *Supervisor) Clients(ctx context.Context, on mps.Device) ([]int, error) {
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
	if err := s.query(w, l, clientsListQuery, func(c client) (err error) {
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

func (c client) servers(ctx context.Context) ([]int, error) {
	out, err := c.query(ctx, "get_server_list")
	if err != nil {
		return nil, err
	}
	return mps.ParsePIDs(out)
}

// clients reads the clients of all servers. It fails if a server did not answer.
func (c client) clients(ctx context.Context, servers []int) ([]int, error) {
	if len(servers) == 0 {
		return nil, nil
	}
	var queries []string
	for _, server := range servers {
		queries = append(queries, mps.ClientsQuery(server))
	}
	out, err := c.query(ctx, strings.Join(queries, "\n"))
	if err != nil {
		return nil, err
	}
	return mps.ParseClients(out, len(servers))
}
