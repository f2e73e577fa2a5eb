package api

// Spec is the desired state of a node. Every name in it is checked by Validate; Normalize writes the defaults in.
type Spec struct {
	Version string       `json:"version"`
	Base    *uint64      `json:"base,omitempty"` // the generation that this was edited from; written by get
	Node    NodeSpec     `json:"node,omitzero"`
	GPUs    []GPUSpec    `json:"gpus,omitempty"`
	Tenants []TenantSpec `json:"tenants,omitempty"`
}

// NodeSpec is policy for the whole node.
type NodeSpec struct {
	Enforce          OnOff          `json:"enforce,omitempty"` // observe | on (off is read as observe)
	Isolation        *IsolationSpec `json:"isolation,omitempty"`
	GPUMemoryReserve *Bytes         `json:"gpu_memory_reserve,omitempty"` // per time-sliced or MPS GPU; default 1GiB
	PerUser          *PerUserSpec   `json:"per_user,omitempty"`
	Queue            *QueueSpec     `json:"queue,omitempty"`
	Quiesce          []string       `json:"quiesce,omitempty"`        // units
	StatusVisible    string         `json:"status_visible,omitempty"` // own | all; default own
	Health           *HealthSpec    `json:"health,omitempty"`
	Engine           *EngineSpec    `json:"engine,omitempty"`
}

// PerUserSpec limits what one user may have at once, over all tenants and grants.
type PerUserSpec struct {
	Leases    *int   `json:"leases,omitempty"`     // 1 or more
	GPUMemory *Bytes `json:"gpu_memory,omitempty"` // of the grants that the user has leases of; above 0
}

// QueueSpec is the order of the queue, and how much one user may have in it.
type QueueSpec struct {
	HalfLife *Duration `json:"half_life,omitempty"` // after how long what was used counts half; default 24h, from 1m
	Waiting  *int      `json:"waiting,omitempty"`   // requests of one user that wait for one grant; default 32
}

// IsolationSpec is policy for processes outside a lease.
type IsolationSpec struct {
	Logins       string `json:"logins,omitempty"`       // open | closed; default open
	Migration    string `json:"migration,omitempty"`    // deny | detect; default deny
	Unattributed string `json:"unattributed,omitempty"` // report | stop; default report
	Unfrozen     string `json:"unfrozen,omitempty"`     // report | stop; default report
	Attach       string `json:"attach,omitempty"`       // member | admin; default member
	// Units are closed as logins are, where they exist: they run commands of users. Default DefaultClosedUnits; an empty list
	// is none.
	Units []string `json:"units,omitzero"`
}

// Whose leases a member sees in the status.
const (
	StatusVisibleOwn = "own" // of their tenants
	StatusVisibleAll = "all" // of all tenants: who has what, without commands
)

// DefaultClosedUnits are the units of cron and at: of Debian, and of Fedora.
func DefaultClosedUnits() []string { return []string{"atd.service", "cron.service", "crond.service"} }

// What a process outside a lease may do, and what happens to it; and to a lease that cannot be frozen.
const (
	LoginsOpen         = "open"   // logins open what the modes of the device nodes allow
	LoginsClosed       = "closed" // a login opens only the GPUs of its user's leases
	MigrationDeny      = "deny"   // users' service managers may not move processes out of a lease
	MigrationDetect    = "detect" // they may; a process that left its lease is found and ended
	AttachMember       = "member" // members attach their own processes
	AttachAdmin        = "admin"  // only administrators attach
	UnattributedReport = "report"
	UnattributedStop   = "stop"
	UnfrozenReport     = "report"
	UnfrozenStop       = "stop" // a lease whose programs ran in three slices of others within three minutes
)

// What happens to a process of a lease that uses a GPU in MPS mode and is no client of its MPS server.
const (
	BypassReport = "report"
	BypassStop   = "stop" // it is ended
	BypassDeny   = "deny" // it gets no context: the compute mode is EXCLUSIVE_PROCESS
)

// GPU modes.
const (
	ModeExclusive = "exclusive"
	ModeMIG       = "mig"
	ModeMPS       = "mps"
	ModeTimeslice = "timeslice"
	ModeExternal  = "external"
	ModeUnmanaged = "unmanaged" // never in a spec: a GPU without an entry
)

// GPUSpec says what the selected GPUs are used for.
type GPUSpec struct {
	Select     Selector       `json:"select"`
	Mode       string         `json:"mode"`
	MIG        *MIGSpec       `json:"mig,omitempty"`
	MPS        *MPSSpec       `json:"mps,omitempty"`
	Timeslice  *TimesliceSpec `json:"timeslice,omitempty"`
	Optional   bool           `json:"optional,omitempty"`
	Health     *HealthSpec    `json:"health,omitempty"` // before that of the node, key by key
	Graphics   bool           `json:"graphics,omitempty"`
	Overcommit bool           `json:"overcommit,omitempty"`
	// Owner is who places what runs there: with mode external any scheduler, else an engine, slurm or kubernetes. An engine's GPU is
	// carved and enforced by gpushare, and only keyed leases of that engine are there.
	Owner     string   `json:"owner,omitempty"`
	ShareWith []string `json:"share_with,omitempty"` // who may place leases there next to the engine: local
}

// The engines whose GPUs gpushare carves and enforces, and who may be there next to them.
const (
	OwnerSlurm      = "slurm"
	OwnerKubernetes = "kubernetes"
	ShareWithLocal  = "local" // leases that no engine requests, as those of gpushare run
)

// Engine is the engine that places the leases on the GPU; empty: none, each request is placed by gpushare, or nothing is placed there.
func (g *GPUSpec) Engine() string {
	if g.Mode == ModeExternal {
		return ""
	}
	return g.Owner
}

// Selector selects GPUs. Exactly one field is set. UUID and PCI are more exact than Index, then PCIID, then Model, then All.
type Selector struct {
	UUID  List[string] `json:"uuid,omitempty"`
	PCI   List[string] `json:"pci,omitempty"`
	Index List[int]    `json:"index,omitempty"`
	PCIID List[string] `json:"pci_id,omitempty"` // a kind of board: "10de:20b0", with its subsystem "10de:20b0:10de:134f"
	Model string       `json:"model,omitempty"`  // a glob
	All   bool         `json:"all,omitempty"`
}

// MIGSpec is a layout: fixed or dynamic.
type MIGSpec struct {
	Layout  []LayoutItem `json:"layout,omitempty"` // one for each instance
	Dynamic bool         `json:"dynamic,omitempty"`
	Keep    *Duration    `json:"keep,omitempty"` // dynamic: how long an idle instance stays; default 5m
	MPS     []LayoutItem `json:"mps,omitempty"`  // items of the layout whose instances are shared through MPS
}

// MPSSpec is how MPS runs on a GPU.
type MPSSpec struct {
	Bypass string `json:"bypass,omitempty"` // report | stop | deny: contexts outside MPS; deny sets EXCLUSIVE_PROCESS
}

// TimesliceSpec is how time is sliced on a GPU.
type TimesliceSpec struct {
	Round *Duration `json:"round,omitempty"` // default 1s, 420ms … 10s
}

// TenantSpec is one tenant.
type TenantSpec struct {
	Name string `json:"name"` // [a-z][a-z0-9-]{0,30}
	// RenamedFrom is the name that it has in the spec in force: its leases, requests and records go on under the new one. Where no
	// tenant has that name, it changes nothing.
	RenamedFrom string `json:"renamed_from,omitempty"`

	Members   Members      `json:"members,omitzero"`
	Adopt     *AdoptSpec   `json:"adopt,omitempty"`
	PerLogin  *MemorySpec  `json:"per_login,omitempty"`
	CPU       *CPUSpec     `json:"cpu,omitempty"`
	Memory    *HostMemSpec `json:"memory,omitempty"`
	Tasks     *uint64      `json:"tasks,omitempty"`
	IO        *IOSpec      `json:"io,omitempty"`
	Priority  string       `json:"priority,omitempty"`   // low | normal | high
	Preempt   string       `json:"preempt,omitempty"`    // stop; default: its leases are not stopped for others
	OnRemoval string       `json:"on_removal,omitempty"` // continue | stop: the leases of users who are not members any more; default continue
	Devices   []string     `json:"devices,omitempty"`    // classes: rdma | fuse | dri
	Overuse   *OveruseSpec `json:"overuse,omitempty"`
	Grants    []GrantSpec  `json:"grants,omitempty"`
}

// Members are users and groups by name.
type Members struct {
	Users  []string `json:"users,omitempty"`
	Groups []string `json:"groups,omitempty"`
}

// AdoptSpec lists becomes a lease automatically, and of which grant.
type AdoptSpec struct {
	Logins string            `json:"logins,omitempty"`
	Units  map[string]string `json:"units,omitempty"`
}

// MemorySpec is one host-memory limit.
type MemorySpec struct {
	Memory *Bytes `json:"memory,omitempty"`
}

// How a lease's CPUs and host memory follow its GPU.
const (
	NUMAPrefer = "prefer" // CPUs of the GPU's NUMA node
	NUMAStrict = "strict" // host memory of that node too
)

// CPUSpec limits CPU.
type CPUSpec struct {
	Quota  *Percent `json:"quota,omitempty"`  // 100% is one CPU
	Weight *uint64  `json:"weight,omitempty"` // 1…10000
	NUMA   string   `json:"numa,omitempty"`   // prefer | strict
}

// HostMemSpec limits host memory.
type HostMemSpec struct {
	Max  *Bytes `json:"max,omitempty"`
	High *Bytes `json:"high,omitempty"`
	Swap *Bytes `json:"swap,omitempty"`
}

// IOSpec weighs disk traffic.
type IOSpec struct {
	Weight *uint64 `json:"weight,omitempty"` // 1…10000
}

// OveruseSpec says what happens to a lease that uses more GPU memory than granted.
type OveruseSpec struct {
	GPUMemory string    `json:"gpu_memory,omitempty"` // observe | notify | freeze | kill; default kill
	Grace     *Duration `json:"grace,omitempty"`      // default 10s
}

// What happens to the leases of a tenant when a request of a tenant with a higher priority waits.
const PreemptStop = "stop" // they may be stopped to free a place

// What happens to the leases of a user who is not a member of the tenant any more.
const (
	OnRemovalContinue = "continue" // until they end
	OnRemovalStop     = "stop"     // gracefully
)

// GrantSpec is what a tenant may use. Exactly one of MIG, Slices, Timeslice, MPS and Exclusive is set, but MPS may be set with
// MIG or Slices: then it is a share of one MIG instance.
type GrantSpec struct {
	Name        string `json:"name"`
	RenamedFrom string `json:"renamed_from,omitempty"` // as of a tenant: the name of the grant in the same tenant

	MIG        string     `json:"mig,omitempty"`        // a profile name
	Slices     uint32     `json:"slices,omitempty"`     // or by properties
	GPUMemory  string     `json:"gpu_memory,omitempty"` // with slices: ">=38GiB"
	Attributes []string   `json:"attributes,omitempty"`
	Timeslice  *ShareSpec `json:"timeslice,omitempty"`
	MPS        *ShareSpec `json:"mps,omitempty"`
	Exclusive  int        `json:"exclusive,omitempty"` // whole GPUs per lease
	GPUs       *Selector  `json:"gpus,omitempty"`
	MaxLeases  *int       `json:"max_leases,omitempty"`
	MaxTime    *Duration  `json:"max_time,omitempty"`
	Idle       *IdleSpec  `json:"idle,omitempty"`
	Reserved   bool       `json:"reserved,omitempty"`
	Accept     string     `json:"accept,omitempty"`  // hard | best-effort: which GPU-memory limit is enough; default best-effort
	Latency    string     `json:"latency,omitempty"` // low: with timeslice, for a service that must not wait for the others
}

// Which limit of GPU memory is enough for a grant: only one that its processes cannot exceed, or also one that they can
// exceed until that is measured.
const (
	AcceptHard       = "hard"
	AcceptBestEffort = "best-effort"
)

// LatencyLow in a grant: its leases are not frozen while they use less than their share, and the others wait for them.
const LatencyLow = "low"

// MostLowLatency is how much of one GPU's time the grants with latency: low on it may have together. The rest is for the other leases,
// and for the queued work that still runs after they were frozen: with more, a lease below its share would wait for it.
const MostLowLatency Percent = 80

// IdleSpec says what happens to a lease that does not use its GPU.
type IdleSpec struct {
	After Duration `json:"after"`        // 10s … 720h
	Do    string   `json:"do,omitempty"` // notify | stop; default notify
}

// What happens to a lease that was idle for the time that its grant allows.
const (
	IdleNotify = "notify"
	IdleStop   = "stop"
)

// ShareSpec is a part of a GPU or of a MIG instance: of its time under timeslice, of its threads under mps.
type ShareSpec struct {
	Share     Percent  `json:"share"`
	GPUMemory *Bytes   `json:"gpu_memory,omitempty"` // for all leases of the grant on one GPU together
	Cap       *Percent `json:"cap,omitempty"`        // timeslice: never more, even on an idle GPU
}

// InInstance reports whether the grant is a share of one MIG instance.
func (g *GrantSpec) InInstance() bool { return g.MPS != nil && (g.MIG != "" || g.Slices > 0) }

// LowLatency reports whether its leases are not frozen while they use less than their share.
func (g *GrantSpec) LowLatency() bool { return g.Latency == LatencyLow && g.Timeslice != nil }

// Mode returns the mode of the GPUs that the grant needs: its kind, but mig for a share of a MIG instance.
func (g *GrantSpec) Mode() string {
	if g.InInstance() {
		return ModeMIG
	}
	return g.Kind()
}

// Kind says what a grant is made of: one of the mode constants.
func (g *GrantSpec) Kind() string {
	switch {
	case g.InInstance():
		return ModeMPS
	case g.MIG != "" || g.Slices > 0:
		return ModeMIG
	case g.Timeslice != nil:
		return ModeTimeslice
	case g.MPS != nil:
		return ModeMPS
	case g.Exclusive > 0:
		return ModeExclusive
	}
	return ""
}
