package cgroup

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/cgroups/v3/cgroup2/stats"
)

// Stat is the use of a cgroup and all below it. nil: the kernel does not report it here, because the controller is not
// enabled, or there is no maximum.
type Stat struct {
	CPU       time.Duration // used since the cgroup was created
	Throttled time.Duration // kept from running by the CPU quota

	Memory     *uint64 // bytes in use
	MemoryPeak *uint64 // bytes
	MemoryMax  *uint64 // bytes
	Swap       *uint64 // bytes in use
	OOMKills   *uint64 // processes killed because memory ran out

	Tasks    *uint64 // threads
	TasksMax *uint64

	CPUPressure    *Pressure
	MemoryPressure *Pressure
	IOPressure     *Pressure
}

// Pressure is how much of the time some or all tasks waited for the resource, in percent over the last 10, 60 and 300
// seconds (Documentation/accounting/psi.rst).
type Pressure struct {
	Some, Full [3]float64
}

// Stat reads the use of the cgroup. ErrNotFound when there is no such cgroup: a removed one must not look idle.
func (h Hierarchy) Stat(cg string) (Stat, error) {
	has, err := h.enabled(cg)
	if err != nil {
		return Stat{}, err
	}
	m, err := cgroup2.Load(cg, cgroup2.WithMountpoint(h.Mount))
	if err != nil {
		return Stat{}, fmt.Errorf("cannot read the statistics of cgroup %s: %w", cg, err)
	}
	raw, err := m.StatFiltered(cgroup2.StatPids | cgroup2.StatCPU | cgroup2.StatMemory | cgroup2.StatMemoryEvents | cgroup2.StatIO)
	if err != nil {
		return Stat{}, fmt.Errorf("cannot read the statistics of cgroup %s: %w", cg, err)
	}
	// The library reads a missing file as 0. So the cgroup must still exist after all files are read.
	if !h.Exists(cg) {
		return Stat{}, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	return statOf(raw, has), nil
}

// enabled lists the controllers that act on the cgroup.
func (h Hierarchy) enabled(cg string) ([]string, error) {
	if !h.Exists(cg) {
		return nil, fmt.Errorf("cgroup %s: %w", cg, ErrNotFound)
	}
	return readWords(h.Dir(cg), "cgroup.controllers")
}

func statOf(m *stats.Metrics, has []string) Stat {
	var s Stat
	if c := m.GetCPU(); c != nil {
		s.CPU = time.Duration(c.GetUsageUsec()) * time.Microsecond
		s.Throttled = time.Duration(c.GetThrottledUsec()) * time.Microsecond
		s.CPUPressure = pressureOf(c.GetPSI())
	}
	if mem := m.GetMemory(); mem != nil {
		s.MemoryPressure = pressureOf(mem.GetPSI())
		if slices.Contains(has, "memory") {
			s.Memory, s.MemoryMax = new(mem.GetUsage()), bounded(mem.GetUsageLimit())
			s.MemoryPeak, s.Swap = new(mem.GetMaxUsage()), new(mem.GetSwapUsage())
		}
	}
	if e := m.GetMemoryEvents(); e != nil {
		s.OOMKills = new(e.GetOomKill())
	}
	if p := m.GetPids(); p != nil && slices.Contains(has, "pids") {
		s.Tasks, s.TasksMax = new(p.GetCurrent()), bounded(p.GetLimit())
	}
	if io := m.GetIo(); io != nil {
		s.IOPressure = pressureOf(io.GetPSI())
	}
	return s
}

// bounded is a maximum; nil for "max", which the library returns as the largest number.
func bounded(n uint64) *uint64 {
	if n == math.MaxUint64 {
		return nil
	}
	return &n
}

func pressureOf(p *stats.PSIStats) *Pressure {
	if p == nil {
		return nil
	}
	return &Pressure{Some: averages(p.GetSome()), Full: averages(p.GetFull())}
}

func averages(d *stats.PSIData) [3]float64 {
	return [3]float64{d.GetAvg10(), d.GetAvg60(), d.GetAvg300()}
}
