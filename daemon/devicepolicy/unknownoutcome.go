package devicepolicy

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// unknownOutcome records the steps on GPUs that did not answer after a change. The last reading of such a GPU is from before
// the change: an instance that a step destroys may be removed, and its device numbers reused. After a restart nothing is
// known of a GPU that does not answer, and slices are kept.
type unknownOutcome struct {
	mu    locks.Mutex[locks.Leaf] // protects steps
	steps map[gpu.UUID][]step.Step
}

// Record keeps the steps of GPUs that did not answer after them.
func (u *unknownOutcome) Record(node *observe.Node, steps []step.Step) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range steps {
		id := gpu.UUID(steps[i].GPU)
		if g, ok := node.GPU(id); ok && g.Err != nil {
			if u.steps == nil {
				u.steps = map[gpu.UUID][]step.Step{}
			}
			u.steps[id] = append(u.steps[id], steps[i])
		}
	}
}

// unconfirmed returns the steps whose outcome an observation does not show, and forgets the others.
func (u *unknownOutcome) unconfirmed(node *observe.Node) []step.Step {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []step.Step
	for id, steps := range u.steps {
		if g, ok := node.GPU(id); ok && g.Err == nil {
			delete(u.steps, id)
			continue
		}
		out = append(out, steps...)
	}
	return out
}
