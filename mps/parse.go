package mps

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The answers come from a program whose versions differ and whose output tenants may influence. So every parser accepts any
// bytes, and returns an error with what it cannot parse.

// ParsePIDs parses one pid a line: get_server_list and get_client_list.
func ParsePIDs(out []byte) ([]int, error) {
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

// Overview is the answer of one run of the control program.
type Overview struct {
	Threads float64 // the default percentage
	Memory  string  // the default limit of device 0 as it reads back, empty for none
	Servers []int   // pids
}

// OverviewQuery has its commands in an order in which the answers can be distinguished, because nothing separates them: a
// line with a number, no line or one with a unit, and lines of pids.
const OverviewQuery = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0\nget_server_list"

// ParseOverview parses the answers to OverviewQuery.
func ParseOverview(out []byte) (Overview, error) {
	var o Overview
	first, rest, _ := bytes.Cut(out, []byte("\n"))
	var err error
	if o.Threads, err = parsePercent(first); err != nil {
		return Overview{}, err
	}
	second, after, _ := bytes.Cut(rest, []byte("\n"))
	if s := trim(second); bytes.HasSuffix(s, []byte("G")) || bytes.HasSuffix(s, []byte("M")) {
		o.Memory, rest = string(s), after
	}
	if o.Servers, err = ParsePIDs(rest); err != nil {
		return Overview{}, err
	}
	return o, nil
}

// ServerReading is what one server reports.
type ServerReading struct {
	Clients []int // ascending
	Fault   bool  // no new client can join until all clients have ended
	// NoStatus: its version has no command that says so.
	NoStatus bool
	Limited  bool // it reported the limits that its next clients get
	Threads  float64
	Memory   string // as it reads back, empty for none
}

// ServerQuery queries the state and the clients of one server, and its limits.
func ServerQuery(pid int, limits bool) string {
	q := fmt.Sprintf("get_server_status %d\nget_client_list %d", pid, pid)
	if limits {
		q += fmt.Sprintf("\nget_active_thread_percentage %d\nget_device_pinned_mem_limit %d 0", pid, pid)
	}
	return q
}

// ParseServer parses the answers to ServerQuery: words, pids, a number with a decimal, and one with a unit. A server may have
// ended meanwhile, or be busy and print nothing. Drivers before 550 do not know the query for the state.
func ParseServer(out []byte) (ServerReading, error) {
	var r ServerReading
	var pids [][]byte
	for line := range bytes.SplitSeq(out, []byte("\n")) {
		switch s := string(trim(line)); {
		case s == "FAULT":
			r.Fault = true
		case s == `Unknown command "get_server_status"`:
			r.NoStatus = true
		case s == "ACTIVE", s == "INITIALIZING":
		case strings.HasPrefix(s, "Server ") && strings.HasSuffix(s, " not found"):
		case strings.HasSuffix(s, "G"), strings.HasSuffix(s, "M"):
			r.Memory = s
		case strings.Contains(s, "."):
			p, err := parsePercent([]byte(s))
			if err != nil {
				return r, answerError(out)
			}
			r.Limited, r.Threads = true, p
		default:
			pids = append(pids, line)
		}
	}
	var err error
	r.Clients, err = ParsePIDs(bytes.Join(pids, []byte("\n")))
	slices.Sort(r.Clients)
	return r, err
}

// parsePercent parses the number of get_default_active_thread_percentage. A default below 0.05 is printed as 0.0.
func parsePercent(out []byte) (float64, error) {
	p, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil || !(p >= 0 && p <= 100) {
		return 0, answerError(out)
	}
	return p, nil
}

// ParseVersion parses the output of -v: "… Binary version: 13000" is CUDA 13.0. Older programs do not have the option.
func ParseVersion(out []byte) (int, error) {
	_, rest, ok := bytes.Cut(out, []byte("Binary version:"))
	if !ok {
		return 0, answerError(out)
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0, answerError(out)
	}
	n, err := strconv.Atoi(string(fields[0]))
	if err != nil || n < 1000 || n > 999999 {
		return 0, answerError(out)
	}
	return n, nil
}

// answerError quotes the beginning of an answer that cannot be parsed.
func answerError(out []byte) error {
	const limit = 200
	s := string(bytes.TrimSpace(out))
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return fmt.Errorf("cannot parse the answer of the control daemon: %q", s)
}

// trim trims space and zero bytes: the help text of some versions contains zero bytes.
func trim(out []byte) []byte { return bytes.Trim(out, " \t\r\n\x00") }
