package state

import (
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/lease"
)

// OpenChange is the change under way.
type OpenChange struct {
	Operation string
	GPUs      map[gpu.UUID]bool // that it touches: they admit no lease

	Brief     bool                    // it only makes and takes away instances on demand: others wait for it
	Ended     chan struct{}           // closed when it is over; nil where nobody waits
	Pending   []lease.PendingInstance // that requests wait for
	Failed    map[gpu.UUID]bool       // GPUs on which it could not even be planned
	Durations []stepDuration          // its steps so far; only its own progress touches it
}

// KindUnmanage is the kind of change that ends the management of the node.
const KindUnmanage = "unmanage"
