package quota

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/gpushare/internal/text"
)

// MemoryActionKind is the kind of a memory action.
type MemoryActionKind string

// The memory actions.
const (
	MemoryNotice   MemoryActionKind = "notice" // close to the limit
	MemoryOver     MemoryActionKind = "over"   // above it; Delay is the time until the next stage
	MemoryClear    MemoryActionKind = "clear"  // well below it again
	MemoryFreeze   MemoryActionKind = "freeze" // at most until Until
	MemoryThaw     MemoryActionKind = "thaw"
	MemoryStop     MemoryActionKind = "stop"     // thaw, then SIGTERM; killed Delay after it was sent
	MemoryKill     MemoryActionKind = "kill"     // kill, in the way that fits the lease
	MemoryLeak     MemoryActionKind = "leak"     // killed, but its memory was not freed
	MemoryPressure MemoryActionKind = "pressure" // the GPU has less free memory than its reserve
)

// MemoryAction is one action about GPU memory, with the numbers for its message. Measure again immediately before a stop or
// a kill, and skip it when the account is no longer above its limit: Evaluate returns it again when needed.
type MemoryAction struct {
	Kind       MemoryActionKind
	Account    string // empty: the whole GPU
	Lease      string // freeze, thaw, stop, kill, leak: the lease
	Used       uint64 // bytes of the whole account, with last known values; pressure: bytes free on the GPU
	Limit      uint64 // bytes; pressure: the reserve
	InPlace    bool   // stop, kill: only the process of the lease that uses most
	Job        bool   // stop, kill: with InPlace, each of its processes on the GPU
	Notify     bool   // notify the tenant, not only the log
	Report     bool   // notice, over, clear: nothing else follows from a use above the limit
	DryRun     bool   // freeze, stop: it would be done, but the node only observes
	Retry      bool   // stop, kill: the same was returned before, and no signal was reported as sent
	Reason     string // freeze: what caused it
	Delay      time.Duration
	Until      time.Duration     // freeze: when it is thawed for a break
	Candidates []MemoryCandidate // stop, pressure: the accounts above their limits, in the order in which they are stopped
}

// MemoryCandidate is one account above its limit, with the numbers that the order of stops is made of.
type MemoryCandidate struct {
	Account      string
	Lease        string // the lease that would be stopped; empty: the use of each is unknown
	Used, Limit  uint64 // bytes
	Growth       int64  // bytes in the last 30 s
	HighPriority bool
	Waits        time.Duration // until its grace is over; 0: it may be stopped now
}

// String is one candidate: "vision/dev l-3 uses 32.2 GiB of 30 GiB (107 %), +1 GiB in 30 s".
func (c MemoryCandidate) String() string {
	sign, growth := "+", c.Growth
	if growth < 0 {
		sign, growth = "-", -growth
	}
	out := fmt.Sprintf(
		"%s %s uses %s of %s (%.0f %%), %s%s in 30 s", c.Account, c.Lease, text.Bytes(c.Used), text.Bytes(c.Limit),
		100*ratio(c.Used, c.Limit), sign, text.Bytes(uint64(growth)),
	)
	if c.HighPriority {
		out += ", high priority"
	}
	if c.Waits > 0 {
		out += fmt.Sprintf(", its grace ends in %v", c.Waits.Round(100*time.Millisecond))
	}
	return out
}

// CandidateList is the candidates in one line.
func (a MemoryAction) CandidateList() string {
	list := make([]string, 0, len(a.Candidates))
	for _, c := range a.Candidates {
		list = append(list, c.String())
	}
	return strings.Join(list, "; ")
}

func ratio(used, limit uint64) float64 { return float64(used) / float64(max(limit, 1)) }

// String is the message, one sentence without a full stop.
func (a MemoryAction) String() string {
	use := fmt.Sprintf("%s uses %s of %s GPU memory", a.Account, text.Bytes(a.Used), text.Bytes(a.Limit))
	if a.Report {
		use += " (reported only)"
	}
	is, gets := "is", "gets"
	if a.DryRun {
		is, gets = "would be", "would get"
	}
	in := a.Delay.Round(100 * time.Millisecond) // What is left of a grace can be any time.
	switch a.Kind {
	case MemoryNotice:
		return use + ": close to its limit"
	case MemoryOver:
		if in > 0 {
			return fmt.Sprintf("%s, more than granted: free memory within %v", use, in)
		}
		return use + ", more than granted"
	case MemoryClear:
		return use + ": below its limit again"
	case MemoryFreeze:
		return fmt.Sprintf("%s: lease %s %s frozen temporarily: %s", use, a.Lease, is, a.Reason)
	case MemoryThaw:
		return fmt.Sprintf("lease %s is thawed", a.Lease)
	case MemoryStop:
		if a.Job {
			return fmt.Sprintf(
				"%s: each process of job %s on the GPU %s SIGTERM and %s killed after %v", use, a.Lease, gets, is, in,
			)
		}
		if a.InPlace {
			return fmt.Sprintf(
				"%s: the process of lease %s that uses most %s SIGTERM and %s killed after %v", use, a.Lease, gets, is, in,
			)
		}
		return fmt.Sprintf("%s: lease %s %s SIGTERM and %s killed after %v", use, a.Lease, gets, is, in)
	case MemoryKill:
		if a.Job {
			return fmt.Sprintf("%s: processes of job %s on the GPU did not end and are killed", use, a.Lease)
		}
		if a.InPlace {
			return fmt.Sprintf("%s: the process of lease %s did not end and is killed", use, a.Lease)
		}
		return fmt.Sprintf("%s: lease %s did not end and is killed", use, a.Lease)
	case MemoryLeak:
		return fmt.Sprintf("the GPU memory of lease %s was not freed after it was killed", a.Lease)
	case MemoryPressure:
		return fmt.Sprintf("the GPU has %s of free memory, less than its reserve of %s", text.Bytes(a.Used), text.Bytes(a.Limit))
	}
	return use
}
