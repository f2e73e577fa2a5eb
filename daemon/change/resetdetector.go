package change

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// resetDetector records which GPUs answered when they were read last: by the converge loop, or at the end of a change. A GPU can be
// reset only while no process has it open, so it does not answer the daemon then; the driver does not report the reset afterwards.
type resetDetector struct {
	mu       locks.Mutex[locks.Leaf] // guards answered
	answered map[gpu.UUID]bool
}

// note records an observation after its consequences were started. Without a driver no GPU answers: during a maintenance in which the
// driver is not used, for example.
func (s *resetDetector) note(node *observe.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = map[gpu.UUID]bool{}
	for i := range node.GPUs {
		s.answered[node.GPUs[i].Identity.UUID] = node.GPUs[i].Err == nil && node.DriverErr == nil
	}
}

// noteOne records that a GPU answered at the end of a change, which the loop may not have observed since the GPU did not answer.
func (s *resetDetector) noteOne(id gpu.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answered == nil {
		s.answered = map[gpu.UUID]bool{}
	}
	s.answered[id] = true
}

// wasReset reports whether a GPU lost all instances while it did not answer, as by a reset. When it answered as it was read last,
// another process removed them: that is drift, which is reported and not restored.
func (s *resetDetector) wasReset(a *store.Achieved, node *observe.Node, id gpu.UUID) bool {
	g, ok := node.GPU(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok && g.Err == nil && !s.answered[id] && a.MIG && len(a.Layout) > 0 && len(g.Instances) == 0
}
