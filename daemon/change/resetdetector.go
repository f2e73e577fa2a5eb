package change

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/store"
)

// resetDetector is which GPUs have been in sight from look to look. A GPU is reset only while nobody has it open, so never under
// the eyes of a daemon that reads it; and no driver tells afterwards that it was. The converge loop's alone.
type resetDetector struct {
	answered map[gpu.UUID]bool // at the look before
}

// note keeps what a look saw, once what follows from it is under way.
func (s *resetDetector) note(node *observe.Node) {
	s.answered = map[gpu.UUID]bool{}
	for i := range node.GPUs {
		s.answered[node.GPUs[i].Identity.UUID] = node.GPUs[i].Err == nil
	}
}

// wasReset tells whether all instances of a GPU went while it was out of sight, as a reset takes them. While it is in sight
// that is somebody's doing, which is told and left alone.
func (s *resetDetector) wasReset(a *store.Achieved, node *observe.Node, id gpu.UUID) bool {
	g, ok := node.GPU(id)
	return ok && g.Err == nil && !s.answered[id] && a.MIG && len(a.Layout) > 0 && len(g.Instances) == 0
}
