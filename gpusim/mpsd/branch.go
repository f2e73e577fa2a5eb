package mpsd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// branch is a branch of the driver. The programs of 535.261.03, 550.163.01 and 555.58.02 were run, and 580.178.04, 595.99.02 and
// 615.71.09 with protocol 2; others behave as the next older one of these.
type branch int

const (
	b535 branch = 535
	b550 branch = 550
	b555 branch = 555
	b580 branch = 580
	b595 branch = 595
	b615 branch = 615
)

// branchOf returns the branch of the node's driver, 580 without one.
func branchOf(root string) branch {
	b, err := os.ReadFile(filepath.Join(root, "sys/module/nvidia/version"))
	number, _, _ := strings.Cut(string(b), ".")
	n, e := strconv.Atoi(number)
	if root == "" || err != nil || e != nil {
		return b580
	}
	found := b535
	for _, known := range []branch{b550, b555, b580, b595, b615} {
		if branch(n) >= known {
			found = known
		}
	}
	return found
}

// What differs between the branches, the oldest difference first.

// keepsLimits: only a valid device and limit change a limit. Before, a limit that cannot be read removes one.
func (b branch) keepsLimits() bool { return b >= b580 }

// checksSetter: only the owner or root may change a setting, and only through the privileged socket. Before, any peer may.
func (b branch) checksSetter() bool { return b >= b550 }

// needsOwner: a server of another user needs the right to change settings. Before, it needs root, on any socket.
func (b branch) needsOwner() bool { return b >= b580 }

// insufficient is the answer to a user who may not do something to a server, up to 550.
func (b branch) insufficient(uid uint32, what string) string {
	if b < b550 {
		return fmt.Sprintf("Insufficient privileges for UID %d", uid)
	}
	return fmt.Sprintf("Insufficient privileges for UID %d. Only the root user may %s.", uid, what)
}

func (b branch) knowsStatus() bool { return b >= b550 } // get_server_status
func (b branch) writesPID() bool   { return b >= b550 }

// ownSettings is the answer to a user who may not change settings.
func (b branch) ownSettings(uid uint32) string {
	who := ""
	if b >= b595 {
		who = "who "
	}
	return fmt.Sprintf(
		"Insufficient privileges for UID %d. Control deamon settings can only be modified by the user %sstarted it or by the root user.",
		uid, who,
	)
}

// version is what -v prints. Until 555 the program takes one of -d, -f and -h alone. With any other argument it prints its help, and
// until 550 it reads commands and does not look at the arguments.
func (b branch) version() int {
	switch {
	case b >= b615:
		return 13040
	case b >= b595:
		return 13020
	case b >= b580:
		return 13000
	}
	return 0
}

func (b branch) hasOptions() bool  { return b >= b580 }
func (b branch) printsHelp() bool  { return b >= b555 } // for an argument that it does not know
func (b branch) queriesGPUs() bool { return b >= b580 } // device_query
func (b branch) takesUUIDs() bool  { return b >= b580 } // as the device of a limit

// needsGPU reports whether a daemon needs a GPU to start: first, before it makes a file, or last, when it seems to run already.
// Until 550 only the server needs one.
func (b branch) needsGPU() (first, last bool) { return b >= b580 && b < b615, b >= b615 }

func (b branch) namesDirectory() bool { return b < b580 } // the directory that it cannot access

// partitions: static partitions of multiprocessors, and with them stricter arguments of start_server.
func (b branch) partitions() bool { return b >= b595 }

func (b branch) locksFile() bool { return b < b615 } // control_lock

func (b branch) directoryMode() os.FileMode {
	if b >= b615 {
		return 0o755
	}
	return 0o777
}

func (b branch) pidMode() os.FileMode {
	if b >= b615 {
		return 0o644
	}
	return 0o666
}

// level is the level in a log line, which says nothing about the line's importance.
func (b branch) level() string {
	if b >= b615 {
		return " INFO"
	}
	return ""
}

// recordMagic starts a record in the log FIFO. A record of another branch silences the log, as in the real daemon.
func (b branch) recordMagic() uint32 {
	if b >= b615 {
		return 0xabcde001 // specific to the virtual node: the vendor's value is not known
	}
	return 0xabcde000
}

// faultLines are what a server logs of a fatal fault of a client. Both forms are strings of the programs. A log with them was never seen.
func (b branch) faultLines(pid int) []string {
	if b < b580 {
		return []string{fmt.Sprintf("Client process %d encountered a fatal GPU error.", pid), "Server is handling a fatal GPU error."}
	}
	return []string{
		fmt.Sprintf("Client {PID: %d, Context ID: 0} encountered a fatal GPU error.", pid),
		"Server has begun teardown sequence to handle a fatal GPU error.",
	}
}
