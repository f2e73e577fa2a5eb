package daemon

import (
	"slices"
	"sync"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/loop"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// samples are the newest fast readings: memory and processes of GPUs with leases, newer than the last observation.
type samples struct {
	wake loop.Wake // a lease began: look now

	mu     sync.Mutex // guards what follows
	gpus   map[gpu.UUID]gpuSample
	leases map[string]leaseSample
}

type gpuSample struct {
	node        uint64 // the observation that it is newer than
	memory      gpu.Memory
	processes   []gpu.Process
	utilization *int // nil: not asked for
}

// leaseSample is what a lease was last seen to use.
type leaseSample struct {
	memory    uint64
	processes int
	stage     string
}

func (s *samples) put(id gpu.UUID, g gpuSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gpus[id] = g
}

// has tells whether a GPU is sampled.
func (s *samples) has(id gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.gpus[id]
	return ok
}

func (s *samples) putLease(id string, l leaseSample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[id] = l
}

// keep forgets the leases that are not in the list, and the GPUs without any.
func (s *samples) keep(ids []string, gpus map[gpu.UUID][]lease.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.leases {
		if !slices.Contains(ids, id) {
			delete(s.leases, id)
		}
	}
	for id := range s.gpus {
		if gpus[id] == nil {
			delete(s.gpus, id)
		}
	}
}

func (s *samples) lease(id string) leaseSample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[id]
}

// over lays the newest readings over an observation.
func (s *samples) over(n *observe.Node) *observe.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.gpus) == 0 {
		return n
	}
	out := *n
	out.GPUs = slices.Clone(n.GPUs)
	for i := range out.GPUs {
		if g, ok := s.gpus[out.GPUs[i].Identity.UUID]; ok && g.node >= n.Seq {
			g.lay(&out.GPUs[i])
		}
	}
	return &out
}

// lay replaces what a sample is newer for. An instance's use is that of its processes: nothing cheaper tells it.
func (s *gpuSample) lay(g *observe.GPU) {
	g.Memory, g.Processes = s.memory, s.processes
	if s.utilization != nil {
		g.Utilization = s.utilization
	}
	if len(g.Instances) == 0 {
		return
	}
	used := map[uint32]uint64{}
	for i := range s.processes {
		if p := &s.processes[i]; p.GI != nil && p.Memory != nil {
			used[*p.GI] += *p.Memory
		}
	}
	g.Instances = slices.Clone(g.Instances)
	for i := range g.Instances {
		m := &g.Instances[i].Memory
		m.Used = min(used[g.Instances[i].ID], m.Total)
		m.Free = m.Total - m.Used
	}
}
