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

// overviewQuestion asks in the order in which the answers, which come without any mark between them, can be told apart: a
// line with a number, no line or one with a unit, and lines of pids.
const overviewQuestion = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0\nget_server_list"

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

// parseClients reads the answers to get_client_list for several servers, ascending. A server may have ended meanwhile.
func parseClients(out []byte) ([]int, error) {
	var kept [][]byte
	for line := range bytes.SplitSeq(out, []byte("\n")) {
		if s := trim(line); !bytes.HasPrefix(s, []byte("Server ")) || !bytes.HasSuffix(s, []byte(" not found")) {
			kept = append(kept, line)
		}
	}
	pids, err := parsePIDs(bytes.Join(kept, []byte("\n")))
	slices.Sort(pids)
	return pids, err
}

// parsePercent reads the one number of get_default_active_thread_percentage.
func parsePercent(out []byte) (float64, error) {
	p, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil || !(p > 0 && p <= 100) {
		return 0, answerError(out)
	}
	return p, nil
}

// parseStatus reads get_server_status: "INITIALIZING", "ACTIVE" or "FAULT".
func parseStatus(out []byte) (string, error) {
	switch s := strings.TrimSpace(string(out)); s {
	case "INITIALIZING", "ACTIVE", "FAULT":
		return s, nil
	}
	return "", answerError(out)
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

// Client is one row of ps.
type Client struct {
	PID       int
	Server    int
	Device    string // a UUID, cut short by the program
	Namespace string
	Command   string
}

// parsePS reads the table of ps by its header: which columns there are depends on the version.
func parsePS(out []byte) ([]Client, error) {
	lines := strings.Split(strings.TrimRight(string(out), "\n\x00 "), "\n")
	if strings.TrimSpace(lines[0]) == "Server not found" {
		return nil, nil // no server yet, or one that is busy: the program does not tell them apart
	}
	header := strings.Fields(lines[0])
	column := map[string]int{}
	for i, name := range header {
		column[name] = i
	}
	if _, ok := column["PID"]; !ok {
		return nil, answerError(out)
	}
	var clients []Client
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) < len(header) {
			return nil, answerError(out)
		}
		get := func(name string) string {
			if i, ok := column[name]; ok {
				return fields[i]
			}
			return ""
		}
		c := Client{Device: get("DEVICE"), Namespace: get("NAMESPACE"), Command: get("COMMAND")}
		var err error
		if c.PID, err = strconv.Atoi(get("PID")); err != nil {
			return nil, answerError(out)
		}
		if s := get("SERVER"); s != "" {
			if c.Server, err = strconv.Atoi(s); err != nil {
				return nil, answerError(out)
			}
		}
		clients = append(clients, c)
	}
	return clients, nil
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
