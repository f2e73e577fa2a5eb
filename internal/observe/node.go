// Package observe reads the node: the GPUs, the slices and the MPS control daemons, once, into one immutable Node.
//
// It changes nothing and decides nothing. Planners, status and metrics all read the same Node.
package observe

import (
	"time"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/mps"
)

// Timeout bounds one observation of the whole node.
const Timeout = 10 * time.Second

// Node is one observation. Nobody changes it once it is made.
type Node struct {
	Seq   uint64 // grows with every observation
	At    time.Time
	Epoch Epoch

	Driver    gpu.NodeInfo
	DriverErr error // the driver as a whole does not answer; GPUs is then what was known before, with this error
	GPUs      []GPU // by index

	Slices    []cgroup.SliceState
	SlicesErr error

	LoginFilters    []device.LoginFilterState // of the cgroups of logins and adopted units; nil where there is none
	LoginFiltersErr error
}

// GPU is one GPU. With Err, all but Identity is of the last observation that succeeded, or zero.
type GPU struct {
	gpu.Snapshot
	Profiles *gpu.Profiles // nil without MIG, or when they could not be read
	MPS      *mps.State    // nil where nobody asked for MPS
	Err      error
}

// Epoch is what makes a change's hardware part void when it differs: instances do not outlive any of these.
type Epoch struct {
	Boot   string `json:"boot"`   // the kernel's boot id
	Driver string `json:"driver"` // when the driver module was loaded; empty without one
}

// String gives both parts.
func (e Epoch) String() string { return e.Boot + "/" + e.Driver }

// GPU finds a GPU by its UUID.
func (n *Node) GPU(id gpu.UUID) (*GPU, bool) {
	for i := range n.GPUs {
		if n.GPUs[i].Identity.UUID == id {
			return &n.GPUs[i], true
		}
	}
	return nil, false
}

// Identities lists who the GPUs are.
func (n *Node) Identities() []gpu.Identity {
	ids := make([]gpu.Identity, len(n.GPUs))
	for i := range n.GPUs {
		ids[i] = n.GPUs[i].Identity
	}
	return ids
}
