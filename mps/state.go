package mps

import (
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// Phase is the phase of a control daemon.
type Phase string

// The phases.
const (
	Starting     Phase = "starting"     // its unit runs, and it does not greet yet
	Running      Phase = "running"      // it greets
	Unresponsive Phase = "unresponsive" // its unit runs, and it missed three greetings in a row, or its server stays in a fault
	Restarting   Phase = "restarting"   // it is desired, its unit does not run, and it is started again soon
	Failed       Phase = "failed"       // the same after several failures: the next start is minutes away
	Stopped      Phase = "stopped"      // a unit with its name that gpushare did not start, and that does not run
)

// Settings are the desired settings of MPS on one device.
type Settings struct {
	GPU      gpu.UUID      `json:"gpu"`
	Instance gpu.Placement `json:"instance,omitzero"` // the MIG instance; its size is 0 for the whole GPU
	// MIG is the UUID of the instance's MIG device; empty for a whole GPU. In a plan that creates the instance it is not known yet.
	MIG gpu.UUID `json:"mig,omitempty"`
	// DenyBypass sets the compute mode to exclusive-process, so that a program that does not join MPS gets no context.
	DenyBypass bool `json:"deny_bypass,omitempty"`
	// Threads is the active thread percentage that a client gets at most, above 0 and below 100; 0 for all.
	Threads float64 `json:"threads,omitempty"`
	// Memory is the pinned memory limit that a client gets at most in bytes, whole MiB; 0 for none. It is enforced for each
	// process separately: N processes may have N times as much.
	Memory uint64 `json:"memory,omitempty"`
}

// Device is what they are for.
func (s Settings) Device() Device { return Device{s.GPU, s.Instance} }

// Defaults are the limits of a client that asks for none, as the control daemon reports them.
type Defaults struct {
	Threads float64 `json:"threads"`          // percent
	Memory  string  `json:"memory,omitempty"` // "2G", rounded down; empty for no limit
}

// Visible is what the control daemon and its server may see: it is device 0 for them.
func (s Settings) Visible() string {
	if s.Device().IsInstance() {
		return string(s.MIG)
	}
	return string(s.GPU)
}

// State is one control daemon as observed.
type State struct {
	GPU      gpu.UUID      `json:"gpu"`
	Instance gpu.Placement `json:"instance,omitzero"` // the MIG instance; its size is 0 for the whole GPU
	Phase    Phase         `json:"phase"`
	Unit     string        `json:"unit"`
	PID      int           `json:"pid,omitempty"`     // of the control daemon
	Version  string        `json:"version,omitempty"` // of the driver that the program belongs to, "550.163.01", or of CUDA, "13.0"; empty when it has neither
	// Program is the control program that is installed now; zero when it cannot be identified.
	Program Release `json:"program,omitzero"`
	// SingleUser: it has a server for one user at a time; processes of another user wait, without a message.
	SingleUser bool `json:"single_user,omitempty"`
	// AnyoneSets: every process that reaches its tenants' socket may change limits, so they are read when one was connected.
	AnyoneSets bool `json:"anyone_sets,omitempty"`
	// Settings are those that it was started with; nil for a daemon without a record, which gpushare does not manage.
	Settings *Settings `json:"settings,omitempty"`
	Servers  []int     `json:"servers,omitempty"` // pids
	Clients  []int     `json:"clients,omitempty"` // pids, ascending
	// Leftovers are processes of a unit whose control daemon has ended: servers that outlived it, with their clients.
	Leftovers       []int `json:"leftovers,omitempty"`
	MissedGreetings int   `json:"missed_greetings,omitempty"` // greetings missed in a row
	// Pending is which limits new clients do not get yet, because a server keeps its own until its clients have ended.
	Pending  string `json:"pending,omitempty"`
	Start    uint64 `json:"start,omitempty"`    // of the control daemon, clock ticks since boot
	Restarts int    `json:"restarts,omitempty"` // starts after the first one since gpushared started
	// Defaults are as the daemon reports them; nil if it did not.
	Defaults *Defaults `json:"defaults,omitempty"`
	Reason   string    `json:"reason,omitempty"` // why it does not run, or not as desired
	Drift    bool      `json:"drift,omitempty"`  // it runs, and a start step corrects the reason without disturbing clients
	// Fault is the last fault since gpushared started; nil before one.
	Fault *Fault `json:"fault,omitempty"`
	// LogSilent: it writes no log any more, and would say nothing of a fault. Clients are not affected.
	LogSilent bool `json:"log_silent,omitempty"`
	// Retry is the earliest time at which it is started again without a request; zero: at once.
	Retry time.Time `json:"retry,omitzero"`
}

// Device is what it serves.
func (s *State) Device() Device { return Device{s.GPU, s.Instance} }

// Down reports whether it is desired and its unit does not run.
func (s *State) Down() bool { return s != nil && (s.Phase == Restarting || s.Phase == Failed) }

// Waits reports whether it is not yet time to start it again.
func (s *State) Waits(now time.Time) bool { return s.Down() && s.Retry.After(now) }

// ReadDefaults returns the defaults as they were read; nil if they were not.
func (s *State) ReadDefaults() *Defaults {
	if s == nil {
		return nil
	}
	return s.Defaults
}

// Healthy reports whether new clients can join.
func (s *State) Healthy() bool { return s != nil && s.Phase == Running && s.Reason == "" }

// Admits reports whether leases are placed here: new clients can join, or it has missed a greeting or two, for which a lease that
// starts waits.
func (s *State) Admits() bool {
	return s.Healthy() || s != nil && s.Phase == Running && s.MissedGreetings > 0
}

// shortID is a GPU's name in paths and units. It has twelve digits, because socket paths are limited to 107 bytes.
func shortID(id gpu.UUID) string {
	_, digits, ok := strings.Cut(string(id), "-")
	if !ok {
		digits = string(id)
	}
	digits = strings.ReplaceAll(digits, "-", "")
	return digits[:min(12, len(digits))]
}

// UnitName is the name of the unit that runs a device's control daemon.
func UnitName(d Device) string { return "gpushare-mps-" + d.Name() + ".service" }

func percentText(p float64) string { return strconv.FormatFloat(p, 'f', -1, 64) }
