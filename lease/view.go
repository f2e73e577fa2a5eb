package lease

import (
	"slices"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// View is what the table decides from: the node as observed, and the grants of the accepted spec.
type View struct {
	Generation uint64 // of the spec that the grants are from
	// DriverUnavailable says why the GPUs cannot be seen now (no driver, a hung one). Empty when they are seen. A blind node admits
	// nobody and refuses nobody as infeasible.
	DriverUnavailable string
	GPUs              []GPUView // in the driver's order
	// Grants of all tenants in spec order.
	Grants []Grant
}

// GPUView is one GPU.
type GPUView struct {
	UUID       gpu.UUID
	Index      int    // for people
	Mode       string // one of api.Mode…
	Capacity   uint64 // bytes that grants may have together, the reserve not yet taken off
	Reserve    uint64 // bytes never granted
	Overcommit bool
	Instances  []InstanceView // that exist, in MIG mode
	// Profiles is what instances this GPU has in its layout or can be given: a grant that matches none of these, nor an
	// instance that exists, never fits here.
	Profiles []ProfileView
	// Closed says why no lease starts here now: cordoned, held, in a change, lost. Empty when the GPU is open. A closed
	// GPU still counts for what can ever fit.
	Closed string
	// ReopensSoon: it is closed only while an instance is made or taken away on it.
	ReopensSoon bool
	// DynamicProfiles is what instances are made of on demand here; nil where the layout is fixed, or nothing may be made now.
	DynamicProfiles *gpu.Profiles
}

// budget is what grants may have together, in bytes.
func (g *GPUView) budget() uint64 { return g.Capacity - min(g.Reserve, g.Capacity) }

// ProfileView is what a MIG instance is or would be.
type ProfileView struct {
	Name       string   // as this device names it: "3g.20gb"
	Slices     uint32   // of compute
	Memory     uint64   // bytes
	Attributes []string // "me", "gfx", …
}

// InstanceView is one MIG instance that exists. It is identified by its GPU and its placement.
type InstanceView struct {
	ProfileView
	Placement gpu.Placement
	UUIDs     []gpu.UUID // of its MIG devices
	ProfileID uint32     // the driver's number
	// Generation is our own number: an instance that is made again at the same place has the same UUIDs and another one.
	Generation uint64
	Pinned     bool // it may not be taken away for somebody's room: it is not ours, or Held
	InUse      bool // processes of no lease have it
	// Unusable says why no lease may have it: foreign, without a compute instance, about to go. Empty when usable.
	Unusable string
}

// Key names a grant on the node.
type Key struct {
	Tenant string `json:"tenant"`
	Grant  string `json:"grant"`
}

// Grant is one grant of a tenant with its selector resolved. A copy of it is a lease's terms.
type Grant struct {
	Tenant   string           `json:"tenant"`
	Priority string           `json:"priority,omitempty"` // low | normal | high; empty is normal
	Spec     api.GrantSpec    `json:"spec"`
	GPUs     []gpu.UUID       `json:"gpus,omitempty"` // what Spec.GPUs resolved to; not read when there is no selector
	Overuse  *api.OveruseSpec `json:"overuse,omitempty"`
	// Profiles are further names under which a device may offer what Spec.MIG means. The spec's own name always counts.
	Profiles []string `json:"profiles,omitempty"`
}

// Key names the grant.
func (g *Grant) Key() Key { return Key{g.Tenant, g.Spec.Name} }

// Kind is the mode of the GPUs that the grant needs.
func (g *Grant) Kind() string { return g.Spec.Kind() }

// MaxLeases is how many leases may live at once; 0 means no limit but the budget.
func (g *Grant) MaxLeases() int {
	if g.Spec.MaxLeases != nil {
		return max(*g.Spec.MaxLeases, 1)
	}
	if k := g.Kind(); k == api.ModeMIG || k == api.ModeExclusive {
		return 1
	}
	return 0
}

// places is how many places a reserved grant keeps free: one for each lease that has a place of its own, and one for
// the budget that shared leases have together.
func (g *Grant) places() int {
	if k := g.Kind(); k == api.ModeMIG || k == api.ModeExclusive {
		return g.MaxLeases()
	}
	return 1
}

// share is the part in its kind, nil for mig and exclusive.
func (g *Grant) share() *api.ShareSpec {
	switch g.Kind() {
	case api.ModeTimeslice:
		return g.Spec.Timeslice
	case api.ModeMPS:
		return g.Spec.MPS
	}
	return nil
}

// percent is the grant's share, 0 where it has none.
func (g *Grant) percent() float64 {
	if s := g.share(); s != nil {
		return float64(s.Share)
	}
	return 0
}

// memory is the GPU memory of all the grant's leases on one GPU together, in bytes; 0 where none is written.
func (g *Grant) memory() uint64 {
	if s := g.share(); s != nil && s.GPUMemory != nil {
		return uint64(*s.GPUMemory)
	}
	return 0
}

// rank orders priorities.
func (g *Grant) rank() int {
	switch g.Priority {
	case "low":
		return -1
	case "high":
		return 1
	}
	return 0
}

// mayUse tells whether the mode and the selector let the grant use the GPU.
func (g *Grant) mayUse(v *GPUView) bool {
	return v.Mode == g.Kind() && (g.Spec.GPUs == nil || slices.Contains(g.GPUs, v.UUID))
}
