package lease

import (
	"slices"
	"strconv"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
)

// View is what the table decides from: the observed node, and the grants of the accepted spec.
type View struct {
	Generation uint64 // of the spec that the grants are from
	// DriverUnavailable is why the GPUs cannot be read now (no driver, a hung one); empty if they can. Meanwhile no
	// lease is admitted and no request is refused as infeasible.
	DriverUnavailable string
	// Maintenance is who closed the node to new leases, since when and why; empty if it takes leases. Meanwhile requests wait.
	Maintenance string
	Observing   bool // no lease is stopped for another
	// StatusVisible: every member may read whose leases there are.
	StatusVisible bool
	PerUser       PerUser
	Queue         Queue
	GPUs          []GPUView // in the driver's order
	// Grants of all tenants in spec order.
	Grants []Grant
}

// Queue is the policy of the queue.
type Queue struct {
	HalfLife time.Duration // after how long what was used counts half; 0: the default
	Waiting  int           // how many requests of one user may wait for one grant; 0: as many as for all grants together
}

// GPUView is one GPU.
type GPUView struct {
	UUID       gpu.UUID
	Index      int    // in messages
	Mode       string // one of api.Mode…
	Capacity   uint64 // bytes that grants may have together, before the reserve is subtracted
	Reserve    uint64 // bytes never granted
	Overcommit bool
	// InNoProcess is how much of its memory, in bytes, is used and in no process. As much of it as live leases were granted may be theirs.
	InNoProcess uint64
	Instances   []InstanceView // that exist, in MIG mode
	// Profiles are the instances that this GPU has in its layout or that can be created: a grant that matches none of
	// them, and no instance that exists, never fits here.
	Profiles []ProfileView
	// Closed is why no lease starts here now: cordoned, held, in a change, lost. Empty if the GPU is open. A closed GPU
	// still counts for what can ever fit.
	Closed string
	// Missing: the driver does not find it. It is closed, no place on it is kept free, and requests for it wait.
	Missing bool
	// Occupied is why no lease may have this exclusive GPU alone now; empty if one may. Leases in place may have it: their
	// processes use it already.
	Occupied string
	// ReopensSoon: it is closed only while an instance is created or removed on it.
	ReopensSoon bool
	// NoHardMemory is why no limit of GPU memory is hard here; empty if it can be, or if that is not known.
	NoHardMemory string
	// OneUser is why only the processes of one user at a time have contexts here; empty without such a rule.
	OneUser string
	// HeldBack is why tenants get no new lease of its MPS, by tenant.
	HeldBack map[string]string
	// MaxClients is the most clients that its MPS server has; 0 without MPS.
	MaxClients int
	// Clients counts the clients of its MPS servers that each lease has, by id; under "" those of no lease, which count on each of
	// its instances.
	Clients map[string]int
	// HardByLease: a hard limit holds for each lease alone, not for the leases of a grant together.
	HardByLease bool
	// Owner is the engine that places the leases here; empty: gpushare alone. SharedWith has who may request them as well.
	Owner      string
	SharedWith []string
	// DynamicProfiles are the profiles of instances that are created on demand here; nil if the layout is fixed, or
	// nothing may be created now.
	DynamicProfiles *gpu.Profiles
}

// name is how messages call the GPU. One that is missing has no index if another GPU has it now.
func (g *GPUView) name() string {
	if g.Index < 0 {
		return string(g.UUID)
	}
	return "GPU " + strconv.Itoa(g.Index)
}

// budget returns the memory that grants may have together, in bytes.
func (g *GPUView) budget() uint64 { return g.Capacity - min(g.Reserve, g.Capacity) }

// ProfileView describes a MIG instance that exists or could be created.
type ProfileView struct {
	Name       string   // as this device names it: "3g.20gb"
	Slices     uint32   // of compute
	Memory     uint64   // bytes
	Attributes []string // "me", "gfx", …
	MPS        bool     // instances of it are shared through MPS: for grants of a share, and for no others
	// Split is the name of a compute instance of such an instance, if it is split: "1c.3g.20gb"; empty: a lease has all of it.
	// Slices and Memory are of the whole instance, because its compute instances share its memory.
	Split string
}

// InstanceView is one MIG instance that exists. It is identified by its GPU and its placement.
type InstanceView struct {
	ProfileView
	Placement gpu.Placement
	UUIDs     []gpu.UUID    // of its MIG devices
	Compute   []ComputeView // its compute instances, if it is split: a lease has one of them; nil: a lease has the instance
	ProfileID uint32        // the driver's number
	// Generation is gpushare's number: an instance that is created again at the same placement has the same UUIDs and
	// another generation.
	Generation uint64
	Pinned     bool              // it is not removed to free capacity: it is not managed by gpushare, or InUse
	InUse      bool              // processes of no lease use it
	Occupied   string            // as of a GPU
	OneUser    string            // as of a GPU, if it is shared through MPS
	MaxClients int               // as of a GPU
	HeldBack   map[string]string // as of a GPU
	// InNoProcess is as of a GPU.
	InNoProcess uint64
	// Unusable is why no lease may have it: foreign, without a compute instance, about to be removed. Empty if it is
	// usable.
	Unusable string
}

// Key identifies a grant on the node.
type Key struct {
	Tenant string `json:"tenant"`
	Grant  string `json:"grant"`
}

// Grant is one grant of a tenant with its selector resolved. A copy of it is a lease's terms.
type Grant struct {
	Tenant   string           `json:"tenant"`
	Priority string           `json:"priority,omitempty"` // low | normal | high; empty is normal
	Preempt  string           `json:"preempt,omitempty"`  // stop: its leases may be stopped for a higher priority
	Spec     api.GrantSpec    `json:"spec"`
	GPUs     []gpu.UUID       `json:"gpus,omitempty"` // what Spec.GPUs resolved to; not read without a selector
	Overuse  *api.OveruseSpec `json:"overuse,omitempty"`

	// Tightened: GPU memory above the limit has consequences now, and had none when the lease started.
	Tightened bool `json:"tightened,omitempty"`

	Chosen *Chosen `json:"-"` // of a candidate for a request of an engine that names an instance; nil: any place

	// Placer is, of a candidate for a request on a node where engines place leases, the engine of the request, or
	// api.ShareWithLocal; empty: any.
	Placer string `json:"-"`

	Only []gpu.UUID `json:"-"` // of a candidate for a request that names GPUs: these, of those that it may use; nil: all of them
}

// Key returns the grant's key.
func (g *Grant) Key() Key { return Key{g.Tenant, g.Spec.Name} }

// Kind returns the mode of the GPUs that the grant needs.
func (g *Grant) Kind() string { return g.Spec.Kind() }

// MaxLeases returns how many leases may exist at once; 0 means that only the budget limits them.
func (g *Grant) MaxLeases() int {
	if g.Spec.MaxLeases != nil {
		return max(*g.Spec.MaxLeases, 1)
	}
	if k := g.Kind(); k == api.ModeMIG || k == api.ModeExclusive {
		return 1
	}
	return 0
}

// places returns how many places are kept free for a reserved grant: one for each lease that has a place of its own,
// and one for the budget that shared leases have together.
func (g *Grant) places() int {
	if k := g.Kind(); k == api.ModeMIG || k == api.ModeExclusive {
		return g.MaxLeases()
	}
	return 1
}

// share returns the share of its kind, nil for mig and exclusive.
func (g *Grant) share() *api.ShareSpec {
	switch g.Kind() {
	case api.ModeTimeslice:
		return g.Spec.Timeslice
	case api.ModeMPS:
		return g.Spec.MPS
	}
	return nil
}

// percent returns the grant's share, 0 if it has none.
func (g *Grant) percent() float64 {
	if s := g.share(); s != nil {
		return float64(s.Share)
	}
	return 0
}

// memory returns the GPU memory of all the grant's leases on one GPU together, in bytes; 0 if the spec has none.
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

// mayUse reports whether the mode, the selector and who places the lease allow the grant to use the GPU.
func (g *Grant) mayUse(v *GPUView) bool { return v.takesFrom(g.Placer) && g.allows(v) }

// allows reports whether the mode and the selector let the grant use the GPU. Who places its lease there is another question.
func (g *Grant) allows(v *GPUView) bool {
	return v.Mode == g.Spec.Mode() && (g.Spec.GPUs == nil || slices.Contains(g.GPUs, v.UUID)) &&
		(g.Only == nil || slices.Contains(g.Only, v.UUID))
}

// index returns a GPU's position in the view; a GPU that is not there comes last.
func (v *View) index(id gpu.UUID) int {
	if i := slices.IndexFunc(v.GPUs, func(d GPUView) bool { return d.UUID == id }); i >= 0 {
		return i
	}
	return len(v.GPUs)
}

// gpu returns a GPU of the view; nil if it is not there.
func (v *View) gpu(id gpu.UUID) *GPUView {
	if i := v.index(id); i < len(v.GPUs) {
		return &v.GPUs[i]
	}
	return nil
}
