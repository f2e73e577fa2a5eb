package gpusim

import (
	"fmt"
	"path"
	"sort"
	"strings"
	"time"
)

// The effects of a fault.
const (
	FaultFail = "fail" // return Code and change nothing
	// FaultHang: return only when faults are cleared, while the GPU's other calls wait. A read ends with its process; a
	// write is in the kernel and continues after the process has ended.
	FaultHang = "hang"
	FaultLose = "lose" // the GPU falls off the bus
)

// Fault makes calls fail, hang or lose the GPU.
type Fault struct {
	ID int `json:"id"`
	// Call is a call's name, or a path.Match pattern; "any" or empty: every call; "write": the calls that change the node
	// (IsWrite).
	Call string `json:"call"`
	GPU  string `json:"gpu,omitempty"` // UUID, PCI address or index; empty: any GPU, and calls on the whole node
	// Nth is the first matching call that the fault hits, counted from 1 since it was added; 0 is 1.
	Nth int `json:"nth,omitempty"`
	// Times is how many calls the fault hits; 0 is 1, negative is every call from the Nth.
	Times int    `json:"times,omitempty"`
	Do    string `json:"do"`
	Code  Ret    `json:"code,omitempty"` // for fail; 0 is UnknownError
	// After: the fault hits after the effect of the call.
	After bool `json:"after,omitempty"`
	// ReadsAnswer: while a change hangs, the calls that read the GPU are answered, with what was before it. Whether a driver does so
	// is not documented.
	ReadsAnswer bool `json:"reads_answer,omitempty"`

	Seen int `json:"seen"` // matching calls
	Hits int `json:"hits"` // matching calls that the fault hit
}

// AddFault adds a fault and returns its id.
func (n *Node) AddFault(f Fault) (int, error) {
	if f.Call == "any" {
		f.Call = ""
	}
	if _, err := path.Match(f.Call, ""); err != nil {
		return 0, fmt.Errorf("cannot add fault for call %q: %w", f.Call, err)
	}
	if f.Do != FaultFail && f.Do != FaultHang && f.Do != FaultLose {
		return 0, fmt.Errorf("cannot add fault: it must fail, hang or lose, not %q", f.Do)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if f.GPU != "" && n.findLocked(f.GPU) == nil {
		return 0, fmt.Errorf("cannot add fault: no GPU %s", f.GPU)
	}
	f.Call = canonical(f.Call)
	f.Nth = max(f.Nth, 1)
	if f.Times == 0 {
		f.Times = 1
	}
	if f.Code == Success {
		f.Code = UnknownError
	}
	n.faultN++
	f.ID, f.Seen, f.Hits = n.faultN, 0, 0
	n.faults = append(n.faults, &f)
	return f.ID, nil
}

// Faults lists the faults with their counts.
func (n *Node) Faults() []Fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]Fault, 0, len(n.faults))
	for _, f := range n.faults {
		out = append(out, *f)
	}
	return out
}

// ClearFaults removes one fault, or all with 0, and releases hanging calls.
func (n *Node) ClearFaults(id int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.faults[:0]
	for _, f := range n.faults {
		if id != 0 && f.ID != id {
			kept = append(kept, f)
		}
	}
	n.faults = kept
	close(n.cleared)
	n.cleared = make(chan struct{})
}

// matchFaultLocked counts a call in every matching fault and returns the first fault that hits it.
func (n *Node) matchFaultLocked(name string, g *device) *Fault {
	var hit *Fault
	for _, f := range n.faults {
		if !f.matches(name) {
			continue
		}
		if f.GPU != "" && (g == nil || n.findLocked(f.GPU) != g) {
			continue
		}
		f.Seen++
		if f.Seen < f.Nth || f.Times >= 0 && f.Hits >= f.Times {
			continue
		}
		if hit == nil {
			f.Hits++
			hit = f
		}
	}
	return hit
}

// matches reports whether a fault applies to calls of a name.
func (f *Fault) matches(name string) bool {
	switch f.Call {
	case "":
		return true
	case "write":
		return IsWrite(name)
	}
	ok, _ := path.Match(f.Call, name) // AddFault checked the pattern
	return ok
}

// canonical removes prefix and version from a function's name: "nvmlDeviceGetMemoryInfo_v2" is "DeviceGetMemoryInfo".
func canonical(name string) string {
	name = strings.TrimPrefix(name, "nvml")
	if i := strings.LastIndex(name, "_v"); i > 0 && len(name) == i+3 {
		name = name[:i]
	}
	return name
}

// IsWrite reports whether a call changes the node. The name may have a version.
func IsWrite(name string) bool {
	name = canonical(name)
	return !strings.HasPrefix(name, "EventSet") &&
		(strings.Contains(name, "Set") || strings.Contains(name, "Create") || strings.Contains(name, "Destroy"))
}

// Counters counts the calls and the failed calls.
type Counters struct {
	Calls    map[string]uint64 `json:"calls"`
	Failures map[string]uint64 `json:"failures"`
	Total    uint64            `json:"total"`
	// Writes are the calls that change the node, including failed ones.
	Writes uint64 `json:"writes"`
}

// Counters returns the counts since the creation of the node.
func (n *Node) Counters() Counters {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := Counters{Calls: map[string]uint64{}, Failures: map[string]uint64{}}
	for name, k := range n.calls {
		out.Calls[name] = k
		out.Total += k
		if IsWrite(name) {
			out.Writes += k
		}
	}
	for name, k := range n.failures {
		out.Failures[name] = k
	}
	return out
}

// SetLatency sets the duration of calls of a name or pattern.
func (n *Node) SetLatency(pattern string, d time.Duration) error {
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf("cannot set latency of %q: %w", pattern, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	latency := map[string]time.Duration{canonical(pattern): d}
	for k, v := range n.cfg.Latency {
		if canonical(k) != canonical(pattern) {
			latency[k] = v
		}
	}
	n.cfg.Latency = latency
	return nil
}

// latencyLocked returns the duration of a call, from the longest matching pattern.
func (n *Node) latencyLocked(name string) time.Duration {
	if d, ok := n.cfg.Latency[name]; ok {
		return d
	}
	patterns := make([]string, 0, len(n.cfg.Latency))
	for p := range n.cfg.Latency {
		if ok, _ := path.Match(p, name); ok {
			patterns = append(patterns, p)
		}
	}
	if len(patterns) == 0 {
		return 0
	}
	sort.Slice(patterns, func(i, j int) bool {
		if len(patterns[i]) != len(patterns[j]) {
			return len(patterns[i]) > len(patterns[j])
		}
		return patterns[i] < patterns[j]
	})
	return n.cfg.Latency[patterns[0]]
}
