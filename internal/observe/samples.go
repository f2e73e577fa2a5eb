package observe

import (
	"slices"
	"time"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
)

// Samples are the newest fast readings: memory and processes of GPUs with leases, newer than the last observation.
type Samples struct {
	mu     locks.Mutex[locks.Leaf] // guards what follows
	gpus   map[gpu.UUID]GPUSample
	leases map[string]map[gpu.UUID]LeaseReading
}

// GPUSample is one fast reading of a GPU.
type GPUSample struct {
	Node        uint64 // the observation that it is newer than
	Memory      gpu.Memory
	Processes   []gpu.Process
	Utilization *int // nil: not queried
	// ReadAt is when memory and processes were read, UtilizationReadAt when the utilization was.
	ReadAt            time.Time
	UtilizationReadAt time.Time
	// Unattributed is the used memory in no process when the processes were listed; nil: unknown.
	Unattributed *uint64
}

// LeaseReading is what a lease was last observed to use of one GPU.
type LeaseReading struct {
	Memory    *uint64   // bytes; nil: it was never measured
	At        time.Time // of the measurement
	Failed    bool      // newer measurements failed: the other values are the last known ones
	Processes []int     // pids; nil: they were not read
	Stage     string    // of the escalation for GPU memory; empty: none
}

// LeaseSample is what a lease was last observed to use of all its GPUs.
type LeaseSample struct {
	Memory    uint64    // bytes
	Unknown   bool      // Memory lacks what was never measured
	LastKnown time.Time // Memory has a value of this time, because newer measurements failed; zero: it is current
	Processes int       // on GPUs
	Stage     string    // of the escalation for GPU memory; empty: none
}

// stages are the stages of the escalation; of two GPUs the later one is shown.
var stages = []string{"", "notice", "over", "frozen", "stopping"}

// NewSamples returns an empty set.
func NewSamples() *Samples {
	return &Samples{gpus: map[gpu.UUID]GPUSample{}, leases: map[string]map[gpu.UUID]LeaseReading{}}
}

// Put keeps the newest reading of a GPU.
func (s *Samples) Put(id gpu.UUID, g GPUSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gpus[id] = g
}

// Has reports whether a GPU is sampled.
func (s *Samples) Has(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.gpus[id]
	return ok
}

// PutMemory keeps a newer reading of a GPU's memory alone. Without a reading of its processes it does nothing. It reports
// whether the reading differs, or is a second newer than the last one that did.
func (s *Samples) PutMemory(id gpu.UUID, m gpu.Memory, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.gpus[id]
	if !ok || g.Memory == m && at.Sub(g.ReadAt) < time.Second {
		return false
	}
	g.Memory, g.ReadAt = m, at
	s.gpus[id] = g
	return true
}

// PutUtilization keeps a newer reading of a GPU's utilization in percent alone, as PutMemory does.
func (s *Samples) PutUtilization(id gpu.UUID, percent int, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.gpus[id]
	if !ok || g.Utilization != nil && *g.Utilization == percent && at.Sub(g.UtilizationReadAt) < time.Second {
		return false
	}
	g.Utilization, g.UtilizationReadAt = &percent, at
	s.gpus[id] = g
	return true
}

// PutLease keeps what a lease was last observed to use of one GPU. A measurement that failed keeps the values before: all of them if
// its processes are nil, because they were not read either. If they were, and some came since the memory was measured, it is unknown:
// nothing was ever measured of those.
func (s *Samples) PutLease(id string, on gpu.UUID, r LeaseReading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[id] == nil {
		s.leases[id] = map[gpu.UUID]LeaseReading{}
	}
	if old, ok := s.leases[id][on]; ok && r.Failed {
		came := slices.ContainsFunc(r.Processes, func(pid int) bool { return !slices.Contains(old.Processes, pid) })
		if !came {
			r.Memory, r.At = old.Memory, old.At
		}
		if r.Processes == nil {
			r.Processes = old.Processes
		}
	}
	s.leases[id][on] = r
}

// Retain removes the leases that are not in the list, and the GPUs without leases.
func (s *Samples) Retain(ids []string, gpus func(gpu.UUID) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.leases {
		if !slices.Contains(ids, id) {
			delete(s.leases, id)
		}
	}
	for id := range s.gpus {
		if !gpus(id) {
			delete(s.gpus, id)
		}
	}
}

// Lease returns what a lease was last observed to use of all its GPUs together.
func (s *Samples) Lease(id string) (out LeaseSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pids := map[int]bool{}
	for _, r := range s.leases[id] {
		for _, pid := range r.Processes {
			pids[pid] = true
		}
		if slices.Index(stages, r.Stage) > slices.Index(stages, out.Stage) {
			out.Stage = r.Stage
		}
		if r.Memory == nil {
			out.Unknown = true
			continue
		}
		out.Memory += *r.Memory
		if r.Failed && (out.LastKnown.IsZero() || r.At.Before(out.LastKnown)) {
			out.LastKnown = r.At
		}
	}
	out.Processes = len(pids)
	return out
}

// LeaseOn returns what a lease was last observed to use of one GPU.
func (s *Samples) LeaseOn(id string, on gpu.UUID) (r LeaseReading, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok = s.leases[id][on]
	return r, ok
}

// MemoryUse is the memory that a lease uses of one GPU, in bytes; nil: it was not measured, or that fails now.
func (s *Samples) MemoryUse(id string, on gpu.UUID) *uint64 {
	if r, ok := s.LeaseOn(id, on); ok && !r.Failed {
		return r.Memory
	}
	return nil
}

// Overlay returns an observation with the newest readings in it.
func (s *Samples) Overlay(n *Node) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.gpus) == 0 {
		return n
	}
	out := *n
	out.GPUs = slices.Clone(n.GPUs)
	for i := range out.GPUs {
		if g, ok := s.gpus[out.GPUs[i].Identity.UUID]; ok && g.Node >= n.Seq {
			g.applyTo(&out.GPUs[i])
		}
	}
	return &out
}

// applyTo replaces the values that the sample has. The memory use of an instance is the sum of its processes, which is the
// cheapest source.
func (s *GPUSample) applyTo(g *GPU) {
	g.Memory, g.Processes, g.Unattributed, g.ReadAt = s.Memory, s.Processes, s.Unattributed, s.ReadAt
	if s.Utilization != nil && !s.UtilizationReadAt.Before(g.UtilizationReadAt) {
		g.Utilization, g.UtilizationReadAt = s.Utilization, s.UtilizationReadAt
	}
	if len(g.Instances) == 0 {
		return
	}
	used := map[uint32]uint64{}
	for i := range s.Processes {
		if p := &s.Processes[i]; p.GI != nil && p.Memory != nil {
			used[*p.GI] += *p.Memory
		}
	}
	g.Instances = slices.Clone(g.Instances)
	for i := range g.Instances {
		m := &g.Instances[i].Memory
		m.Used = min(used[g.Instances[i].ID], m.Total-min(m.Reserved, m.Total))
		m.Free = m.Total - min(m.Reserved, m.Total) - m.Used
	}
}
