package change

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// resetDetector records which GPUs answered at the last observation. A GPU can be reset only while no process has it open, so
// it does not answer the daemon then; the driver does not report the reset afterwards. Only the converge loop uses it.
type resetDetector struct {
	answered map[gpu.UUID]bool // at the previous observation
}

// note records an observation after its consequences were started.
func (s *resetDetector) note(node *observe.Node) {
	s.answered = map[gpu.UUID]bool{}
	for i := range node.GPUs {
		s.answered[node.GPUs[i].Identity.UUID] = node.GPUs[i].Err == nil
	}
}

// wasReset reports whether a GPU lost all instances while it did not answer, as by a reset. When it answered at the previous
// observation, another process removed them: that is drift, which is reported and not restored.
func (s *resetDetector) wasReset(a *store.Achieved, node *observe.Node, id gpu.UUID) bool {
	g, ok := node.GPU(id)
	return ok && g.Err == nil && !s.answered[id] && a.MIG && len(a.Layout) > 0 && len(g.Instances) == 0
}
