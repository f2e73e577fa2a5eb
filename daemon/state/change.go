package state

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/lease"
)

// OpenChange is the change that is carried out now.
type OpenChange struct {
	Operation string
	GPUs      map[gpu.UUID]bool // that it changes: they admit no lease

	Brief     bool                    // it only creates and removes instances on demand: other changes wait for it
	Ended     chan struct{}           // closed when it ends; nil when no change waits for it
	Pending   []lease.PendingInstance // the instances that requests wait for
	Failed    map[gpu.UUID]bool       // GPUs without a plan
	Durations []stepDuration          // of its steps so far; only its progress hook changes it
}

// KindApply is the kind of change that puts a spec in force.
const KindApply = "apply"

// KindRetry is the kind of change of one GPU that was held or did not answer.
const KindRetry = "retry"

// KindUnmanage is the kind of change that ends the management of the node.
const KindUnmanage = "unmanage"

// KindRestore is the kind of change that creates the layouts again that a boot, a reset or a load of the driver removed.
const KindRestore = "restore"

// KindMPSRestart is the kind of change that restarts MPS on one GPU.
const KindMPSRestart = "mps-restart"

// The kinds of change by which an administrator imports or removes foreign instances.
const (
	KindImport = "import"
	KindRemove = "remove"
)

// ChangesOwnership reports whether a change is of single instances, and not of what the spec says.
func ChangesOwnership(kind string) bool { return kind == KindImport || kind == KindRemove }

// RemovesInstances reports whether an administrator may remove single instances of a GPU, under the spec in force.
func (s *State) RemovesInstances(id gpu.UUID) bool {
	want := s.Desired()
	return want.Enforcing() && want.Manages(id)
}

// EveryGPU is the GPUs of a node, as those of a change.
func EveryGPU(n *observe.Node) map[gpu.UUID]bool {
	out := map[gpu.UUID]bool{}
	for i := range n.GPUs {
		out[n.GPUs[i].Identity.UUID] = true
	}
	return out
}
