// Package observe reads the node: the GPUs, the slices and the MPS control daemons, once, into one immutable Node.
//
// It changes nothing and decides nothing. Planners, status and metrics read the same Node.
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

// Node is one observation. It is immutable.
type Node struct {
	Seq   uint64 // grows with every observation
	At    time.Time
	Epoch Epoch

	Driver    gpu.NodeInfo
	DriverErr error // the driver does not answer; GPUs is then the last known, with this error
	GPUs      []GPU // by index
	// Missing are the GPUs of the spec that the driver does not find, as they were. An index or an address that another GPU has
	// now is -1 or empty.
	Missing []gpu.Identity

	Slices    []cgroup.SliceState
	SlicesErr error

	LoginFilters    []device.LoginFilterState // of the cgroups of logins and adopted units; nil without any
	LoginFiltersErr error
}

// GPU is one GPU. With Err, everything except Identity is of the last observation that succeeded, or zero.
type GPU struct {
	gpu.Snapshot
	Profiles *gpu.Profiles // nil without MIG, or when they could not be read
	// ProfilesAssumed: MIG mode is off and the driver reports no profiles then, so Profiles are what the model is known to have.
	ProfilesAssumed bool
	MPS             *mps.State // nil where MPS was not requested
	// InstanceMPS are the MPS control daemons of its MIG instances, by placement, also of removed instances.
	InstanceMPS []*mps.State
	Err         error
	// ReadAt is when its memory and its processes were read, UtilizationReadAt when its utilization was; zero: never.
	ReadAt            time.Time
	UtilizationReadAt time.Time
	// Unattributed is the used memory in no process, by a reading of memory and processes together; nil where the GPU is not
	// sampled, and where it is unknown.
	Unattributed *uint64
}

// MPSAt is the MPS control daemon of the instance at a placement; nil without one.
func (g *GPU) MPSAt(at gpu.Placement) *mps.State {
	return g.MPSOf(mps.Device{GPU: g.Identity.UUID, Instance: at})
}

// MPSOf is the MPS control daemon of a device of this GPU; nil without one.
func (g *GPU) MPSOf(d mps.Device) *mps.State {
	if !d.IsInstance() {
		return g.MPS
	}
	for _, m := range g.InstanceMPS {
		if m.Device() == d {
			return m
		}
	}
	return nil
}

// ControlDaemons are all MPS control daemons of the GPU and of its instances.
func (g *GPU) ControlDaemons() []*mps.State {
	if g.MPS == nil {
		return g.InstanceMPS
	}
	return append([]*mps.State{g.MPS}, g.InstanceMPS...)
}

// InstanceAt is the instance at a placement; nil without one.
func (g *GPU) InstanceAt(at gpu.Placement) *gpu.Instance {
	for i := range g.Instances {
		if g.Instances[i].Placement == at {
			return &g.Instances[i]
		}
	}
	return nil
}

// Epoch makes the hardware part of a change void when it differs: instances do not survive a boot or a driver load.
type Epoch struct {
	Boot   string `json:"boot"`   // the kernel's boot id
	Driver string `json:"driver"` // when the driver module was loaded; empty without one
}

// String returns both parts.
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

// Identities lists the identities of the GPUs.
func (n *Node) Identities() []gpu.Identity {
	ids := make([]gpu.Identity, len(n.GPUs))
	for i := range n.GPUs {
		ids[i] = n.GPUs[i].Identity
	}
	return ids
}
