package mps

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// MaxClients is the most clients that the server of a control daemon has, by the version of its program; 0 without one.
func (s *State) MaxClients() int {
	if s == nil {
		return 0
	}
	can, _ := s.Program.Abilities()
	return can.MaxClients
}

// ClientsQuery queries the clients of one server between two queries that every server answers with a percentage. A server that
// is busy has an empty answer to each, as a server without clients has to the one for its clients.
func ClientsQuery(pid int) string {
	return fmt.Sprintf("get_active_thread_percentage %d\nget_client_list %[1]d\nget_active_thread_percentage %[1]d", pid)
}

// ParseClients parses the answers to ClientsQuery for some servers: the clients, ascending.
func ParseClients(out []byte, servers int) ([]int, error) {
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
	clients, err := ParsePIDs(bytes.Join(pids, []byte("\n")))
	slices.Sort(clients)
	return clients, err
}
