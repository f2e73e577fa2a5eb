package sandbox

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// State is what the kernel says of the confinement of a process.
type State struct {
	UID         int    // the effective one
	Effective   uint64 // capabilities
	Permitted   uint64
	NoNewPrivs  bool
	Filtered    bool // seccomp filters its calls
	ThreadGroup int  // its pid
}

// mostStatus bounds what is read of /proc/PID/status: it has a list of groups.
const mostStatus = 1 << 20

// StateOf reads the state of a process.
func StateOf(pid int) (State, error) {
	// The kernel writes a list of groups after the uids, and what is needed after that.
	b, _, err := boundedread.OfProcess(pid, "status", mostStatus)
	if err != nil {
		return State{}, fmt.Errorf("cannot read the confinement of pid %d: %w", pid, err)
	}
	return parseStatus(b)
}

func parseStatus(b []byte) (State, error) {
	var s State
	var failed error
	number := func(text string, base int) uint64 {
		n, err := strconv.ParseUint(text, base, 64)
		if err != nil {
			failed = fmt.Errorf("cannot read the confinement of a process: %w", err)
		}
		return n
	}
	found := 0
	for line := range bytes.Lines(b) {
		key, rest, _ := strings.Cut(string(line), ":")
		words := strings.Fields(rest)
		if len(words) == 0 {
			continue
		}
		found++
		switch key {
		case "Tgid":
			s.ThreadGroup = int(number(words[0], 10))
		case "Uid":
			if len(words) < 2 {
				return s, fmt.Errorf("cannot read the confinement of a process: it has %d uids", len(words))
			}
			s.UID = int(number(words[1], 10))
		case "CapEff":
			s.Effective = number(words[0], 16)
		case "CapPrm":
			s.Permitted = number(words[0], 16)
		case "NoNewPrivs":
			s.NoNewPrivs = words[0] == "1"
		case "Seccomp":
			s.Filtered = words[0] == "2"
		default:
			found--
		}
	}
	if failed == nil && found < 6 {
		failed = fmt.Errorf("cannot read the confinement of a process: the kernel reports %d of 6 values", found)
	}
	return s, failed
}
