package mps

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Answers come from a program that others may influence and whose versions differ: every parser takes bytes as they are
// and says what it did not understand.

// parsePIDs reads one pid a line: get_server_list and get_client_list.
func parsePIDs(out []byte) ([]int, error) {
	var pids []int
	for line := range bytes.SplitSeq(out, []byte("\n")) {
		word := strings.TrimSpace(string(line))
		if word == "" {
			continue
		}
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 0 {
			return nil, answerError(out)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// overview is what one run of the control program tells of a daemon.
type overview struct {
	threads float64 // the default percentage
	memory  string  // the default limit of device 0 as it reads back, empty for none
	servers []int   // pids
}

// overviewQuery asks in the order in which the answers, which come without any mark between them, can be told apart: a
// line with a number, no line or one with a unit, and lines of pids.
const overviewQuery = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0\nget_server_list"

func parseOverview(out []byte) (overview, error) {
	var o overview
	first, rest, _ := bytes.Cut(out, []byte("\n"))
	var err error
	if o.threads, err = parsePercent(first); err != nil {
		return overview{}, err
	}
	second, after, _ := bytes.Cut(rest, []byte("\n"))
	if s := trim(second); bytes.HasSuffix(s, []byte("G")) || bytes.HasSuffix(s, []byte("M")) {
		o.memory, rest = string(s), after
	}
	if o.servers, err = parsePIDs(rest); err != nil {
		return overview{}, err
	}
	return o, nil
}

// serverQuery asks for one server's state and clients. Their answers, for several servers in a row, are words and pids.
func serverQuery(pid int) string {
	return fmt.Sprintf("get_server_status %d\nget_client_list %d", pid, pid)
}

// parseServers reads the answers to serverQuery: the clients, ascending, and whether some server has a fatal fault, which no
// new client gets past until all of the old ones have left. A server may have ended meanwhile, or be busy and say nothing;
// drivers before 550 do not know the question for the state.
func parseServers(out []byte) (clients []int, fault bool, err error) {
	var pids [][]byte
	for line := range bytes.SplitSeq(out, []byte("\n")) {
		switch s := string(trim(line)); {
		case s == "FAULT":
			fault = true
		case s == "ACTIVE", s == "INITIALIZING", s == `Unknown command "get_server_status"`:
		case strings.HasPrefix(s, "Server ") && strings.HasSuffix(s, " not found"):
		default:
			pids = append(pids, line)
		}
	}
	clients, err = parsePIDs(bytes.Join(pids, []byte("\n")))
	slices.Sort(clients)
	return clients, fault, err
}

// parsePercent reads the one number of get_default_active_thread_percentage.
func parsePercent(out []byte) (float64, error) {
	p, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil || !(p > 0 && p <= 100) {
		return 0, answerError(out)
	}
	return p, nil
}

// parseVersion reads `-v`: "… Binary version: 13000" is CUDA 13.0. Versions before 13 do not have the option and print
// their help instead, with success.
func parseVersion(out []byte) (string, error) {
	_, rest, ok := bytes.Cut(out, []byte("Binary version:"))
	if !ok {
		return "", answerError(out)
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return "", answerError(out)
	}
	n, err := strconv.Atoi(string(fields[0]))
	if err != nil || n < 1000 || n > 999999 {
		return "", answerError(out)
	}
	return fmt.Sprintf("%d.%d", n/1000, n%1000/10), nil
}

// answerError quotes an answer that was not understood, and no more of it than a person reads.
func answerError(out []byte) error {
	const most = 200
	s := string(bytes.TrimSpace(out))
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Errorf("the control daemon answered %q", s)
}

// trim takes off what surrounds a one-word answer: the help text of some versions has zero bytes in it.
func trim(out []byte) []byte { return bytes.Trim(out, " \t\r\n\x00") }
