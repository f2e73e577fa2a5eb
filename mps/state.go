package mps

import (
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/gpu"
)

// Phase is where a control daemon is.
type Phase string

// The phases.
const (
	Starting     Phase = "starting"     // its unit runs and it does not greet yet
	Running      Phase = "running"      // it greets
	Unresponsive Phase = "unresponsive" // its unit runs and it did not greet three times in a row
	Failed       Phase = "failed"       // it should run and its unit does not
	Stopped      Phase = "stopped"      // somebody's unit of our name that nobody asked for, and that does not run
)

// Settings say how MPS should run on one GPU.
type Settings struct {
	GPU gpu.UUID `json:"gpu"`
	// Strict sets the compute mode to exclusive-process, so that a program that does not join MPS gets no context.
	Strict bool `json:"strict,omitempty"`
	// Threads is the default active thread percentage of every client, above 0 up to 100; 0 for all.
	Threads float64 `json:"threads,omitempty"`
	// Memory is the default pinned memory limit of every client in bytes, whole MiB; 0 for none. It holds for each
	// process by itself: N processes may have N times as much.
	Memory uint64 `json:"memory,omitempty"`
}

// sameServer tells whether a server that runs with the one settings suits the other: the compute mode is not the server's.
func (s Settings) sameServer(o Settings) bool { return s.Threads == o.Threads && s.Memory == o.Memory }

// State is one control daemon as observed.
type State struct {
	GPU     gpu.UUID `json:"gpu"`
	Phase   Phase    `json:"phase"`
	Unit    string   `json:"unit"`
	PID     int      `json:"pid,omitempty"`     // of the control daemon
	Version string   `json:"version,omitempty"` // "13.0"; empty when the program does not tell
	// Settings are those that it was started with; nil for a daemon without a record, which is not ours to change.
	Settings *Settings `json:"settings,omitempty"`
	Servers  []int     `json:"servers,omitempty"` // pids
	Clients  []int     `json:"clients,omitempty"` // pids, ascending
	// Leftovers are processes of a unit whose control daemon is gone: servers that outlived it, with their clients.
	Leftovers       []int  `json:"leftovers,omitempty"`
	MissedGreetings int    `json:"missed_greetings,omitempty"` // greetings missed in a row
	Reason          string `json:"reason,omitempty"`           // why it is not running, or not as it should be
	Drift           bool   `json:"drift,omitempty"`            // it runs, and starting it again mends the reason without disturbing anybody
}

// Healthy tells whether new clients can join.
func (s *State) Healthy() bool { return s != nil && s.Phase == Running && s.Reason == "" }

// shortID is a GPU's name in paths and units. The twelve digits keep socket paths, which may have 107 bytes, short.
func shortID(id gpu.UUID) string {
	_, digits, ok := strings.Cut(string(id), "-")
	if !ok {
		digits = string(id)
	}
	digits = strings.ReplaceAll(digits, "-", "")
	return digits[:min(12, len(digits))]
}

// UnitName is the name of the unit that runs a GPU's control daemon.
func UnitName(id gpu.UUID) string { return "gpushare-mps-" + shortID(id) + ".service" }

func percentText(p float64) string { return strconv.FormatFloat(p, 'f', -1, 64) }
