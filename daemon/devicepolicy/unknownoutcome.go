package devicepolicy

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
)

// unknownOutcome are GPUs that were changed and did not answer afterwards. What is known of such a one is from before the change:
// an instance that a step was to destroy may be gone, and its numbers another's. After a restart no GPU that does not
// answer is known at all, and slices stay as they stand.
type unknownOutcome struct {
	mu    locks.Mutex[locks.Leaf] // guards steps
	steps map[gpu.UUID][]step.Step
}

// note remembers the steps of GPUs that did not answer after them.
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

// unconfirmed gives the steps whose outcome an observation does not show, and forgets those that it shows.
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
