package mps

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FaultTime is how long a server may have a fault until it counts as stuck. Its clients are stopped well before.
const FaultTime = 30 * time.Second

// Fault is a fatal fault of a server. Every client of that time has lost its context.
type Fault struct {
	// Since is when it was seen; the same for one fault.
	Since time.Time `json:"since"`
	// XID is what the driver reported of the GPU around that time; 0 if it reported none.
	XID uint64 `json:"xid,omitempty"`
	// Culprit is the client that the server's log names; 0 if it names none.
	Culprit int `json:"culprit,omitempty"`
	// Victims are the pids of the other clients, ascending.
	Victims []int `json:"victims,omitempty"`
	// Stragglers are the clients that still run, the culprit among them. No client joins until they have ended.
	Stragglers []int `json:"stragglers,omitempty"`
	// Stuck: the server has the fault for longer than its clients take to end. Only a restart helps.
	Stuck bool `json:"stuck,omitempty"`
}

// faultText is the line that names the culprit. The first form is of server.log of 580 and of strings of other versions; the second is
// in the driver's library of 535.261.03 and 550.163.01.
var faultText = regexp.MustCompile(`Client (?:\{PID: ([0-9]+), Context ID: [0-9]+\}|process ([0-9]+)) encountered a fatal GPU error`)

// FaultIn returns the last line of a log that names a culprit, and the culprit; 0 if none does.
func FaultIn(lines []string) (line string, pid int) {
	for _, l := range slices.Backward(lines) {
		if m := faultText.FindStringSubmatch(l); m != nil {
			if n, err := strconv.Atoi(m[1] + m[2]); err == nil && n > 0 {
				return l, n
			}
		}
	}
	return "", 0
}

// Among returns those of the clients that the fault has reached.
func (f *Fault) Among(clients []int) []int {
	return slices.DeleteFunc(clients, func(pid int) bool { return pid != f.Culprit && !slices.Contains(f.Victims, pid) })
}

// Reason says why no client can join.
func (f *Fault) Reason() string {
	culprit, run, how := "", "", ""
	if f != nil && f.Culprit != 0 {
		culprit = fmt.Sprintf(" of pid %d", f.Culprit)
	}
	if f != nil && f.XID != 0 {
		culprit += fmt.Sprintf(" (XID %d)", f.XID)
	}
	if f != nil && len(f.Stragglers) > 0 {
		run = ", and these run: " + strings.Trim(fmt.Sprint(f.Stragglers), "[]")
	}
	if f != nil && f.Stuck {
		how = fmt.Sprintf(" for more than %s", FaultTime)
	}
	return "its server has a fatal fault" + culprit + how + ": no new client can join until all of its clients have ended" + run
}
