package api

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SocketPath is where the daemon listens by default.
const SocketPath = "/run/gpushare/gpushare.sock"

// FeatureResets is the key "reset" of a query: the permission to reset some GPUs alone.
const FeatureResets = "resets"

// Features is the append-only list of what this version of the API can do beyond the first.
func Features() []string {
	return []string{
		"spec", "leases", "operations", "events", "unmanage", "attach", "explain", "containers", "usage", "sensors", "xids", "instance-use",
		FeatureResets,
	}
}

// Info answers GET /v1.
type Info struct {
	API      string   `json:"api"` // "v1"
	Version  string   `json:"version"`
	Features []string `json:"features"`
	Driver   string   `json:"driver,omitempty"`  // the driver's version, empty without one
	Adapter  string   `json:"adapter,omitempty"` // systemd, cgroupfs or processes
	Caller   Caller   `json:"caller"`
}

// Caller is the user that the daemon identified on the socket.
type Caller struct {
	UID     int      `json:"uid"`
	User    string   `json:"user,omitempty"`
	Role    string   `json:"role"`              // admin | member | observer | none
	Tenants []string `json:"tenants,omitempty"` // the caller's tenants
}

// Status answers GET /v1/status: the node as observed now.
type Status struct {
	SchemaVersion int            `json:"schema_version"` // 1
	At            time.Time      `json:"at"`
	Node          NodeStatus     `json:"node"`
	GPUs          []GPUStatus    `json:"gpus"`
	Tenants       []TenantStatus `json:"tenants"`
	Leases        []Lease        `json:"leases"`
	Users         []UserStatus   `json:"users,omitempty"` // with a lease, except for root; a member sees only themselves
}

// UserStatus is what one user has over all tenants, and what they may have.
type UserStatus struct {
	User      string     `json:"user"`
	UID       int        `json:"uid"`
	Leases    int        `json:"leases"`
	MaxLeases int        `json:"max_leases,omitempty"` // 0: no limit
	GPUMemory UserMemory `json:"gpu_memory"`
}

// UserMemory is the memory of the grants that a user has leases of, in bytes.
type UserMemory struct {
	Granted uint64 `json:"granted"`
	Limit   uint64 `json:"limit,omitempty"` // 0: no limit
}

// NodeStatus is the node as a whole.
type NodeStatus struct {
	Host       string      `json:"host"`
	Generation uint64      `json:"generation"` // of the accepted spec, 0 without one
	Enforce    string      `json:"enforce"`    // observe | on
	Driver     string      `json:"driver,omitempty"`
	Adapter    string      `json:"adapter"`
	ClosedTo   []string    `json:"closed_to,omitempty"`  // cgroups whose processes open managed GPUs only with a lease, as read back
	Conditions []Condition `json:"conditions,omitempty"` // what is wrong or weaker than requested; empty is healthy
	Operation  string      `json:"operation,omitempty"`  // the running change
	Starting   bool        `json:"starting,omitempty"`   // the daemon was started and has not yet compared the node with the spec: a change may follow
	Unmanaged  *Unmanaged  `json:"unmanaged,omitempty"`  // the node was unmanaged, and no spec was applied since
	Times      []StepTime  `json:"times,omitempty"`      // measured durations of steps
	// StatusVisible is whose leases members see: own or all, as in the spec; absent: own.
	StatusVisible string `json:"status_visible,omitempty"`
	// Maintenance is who took the node out of service; absent: it takes leases.
	Maintenance *Maintenance `json:"maintenance,omitempty"`
}

// Unmanaged says that gpushare stopped managing the node.
type Unmanaged struct {
	By  string    `json:"by"`
	At  time.Time `json:"at"`
	All bool      `json:"all,omitempty"` // GPUs were restored too; otherwise they keep their modes and the spec is observed
}

// Condition is one thing that is wrong or weaker than requested.
type Condition struct {
	ID      string    `json:"id"`   // the same for the same kind about the same GPU, tenant or thing, also after a restart
	Kind    string    `json:"kind"` // "driver", "held", "drift", "not-enforced", "state", "mps", …
	GPU     string    `json:"gpu,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Message string    `json:"message"`
	Hint    string    `json:"hint,omitempty"`
	Since   time.Time `json:"since"`
	// Acknowledged is by whom; absent: by no administrator.
	Acknowledged *Acknowledgement `json:"acknowledged,omitempty"`
}

// Acknowledgement is who knows of a condition. It ends with the condition, or at Until. Members see only when it ends.
type Acknowledgement struct {
	By     string     `json:"by,omitempty"`
	At     time.Time  `json:"at"`
	Until  *time.Time `json:"until,omitempty"` // absent: only when the condition ends
	Reason string     `json:"reason,omitempty"`
}

// AcknowledgeRequest is the body of POST /v1/conditions/{id}/ack.
type AcknowledgeRequest struct {
	For    *Duration `json:"for,omitempty"` // absent: until the condition ends
	Reason string    `json:"reason,omitempty"`
}

// AcknowledgeResult answers POST /v1/conditions/{id}/ack and unack.
type AcknowledgeResult struct {
	SchemaVersion int       `json:"schema_version"` // 1
	Changed       bool      `json:"changed"`
	Condition     Condition `json:"condition"`
}

// GPUStatus is one GPU.
type GPUStatus struct {
	Index       int             `json:"index"`
	UUID        string          `json:"uuid"`
	PCI         string          `json:"pci"`
	Model       string          `json:"model"`
	Mode        string          `json:"mode"`                 // of the spec; unmanaged without an entry
	Owner       string          `json:"owner,omitempty"`      // as in the spec: the external scheduler, or the engine that places the leases
	ShareWith   []string        `json:"share_with,omitempty"` // who else gets leases on the GPU of an engine, as in the spec
	State       string          `json:"state"`                // ok | changing | held | cordoned | unhealthy | drained | mps-down | lost | stuck | missing | no-driver | mismatch | parked
	Reason      string          `json:"reason,omitempty"`
	Memory      GPUMemory       `json:"memory"`
	Utilization *int            `json:"utilization,omitempty"` // percent; absent when unknown
	MIG         *MIGStatus      `json:"mig,omitempty"`
	MPS         *MPSStatus      `json:"mps,omitempty"`
	Processes   []ProcessStatus `json:"processes,omitempty"`
	// ReadAt is when memory and processes were read; absent if they never were: then used and free are 0.
	ReadAt *time.Time `json:"read_at,omitempty"`
	// UtilizationReadAt is when the utilization was read; absent with it.
	UtilizationReadAt *time.Time      `json:"utilization_read_at,omitempty"`
	TimeSlices        *TimeSlices     `json:"time_slices,omitempty"` // of a time-sliced GPU with leases
	Granted           []GrantedMemory `json:"granted,omitempty"`     // GPU memory that live leases and reserved grants take here
	Cordoned          *Cordon         `json:"cordoned,omitempty"`    // absent: no administrator closed it to new leases
	Closures          []Closure       `json:"closures,omitempty"`    // all reasons why it, its instances or its MPS take no lease
	Health            *GPUHealth      `json:"health,omitempty"`      // absent before the first observation
	Sensors           *Sensors        `json:"sensors,omitempty"`     // absent before the first reading, and with a driver that gives none
	// Unattributed is the used GPU memory that no listed process accounts for, in bytes: managed memory, processes of other
	// pid namespaces, memory that was not freed. 0 when it is no more than a driver uses itself; absent when unknown.
	Unattributed *uint64 `json:"unattributed,omitempty"`
	// DeviceNode is the file that processes open to use it; absent if it is not known. With MIG the instances have their own too.
	DeviceNode string `json:"device_node,omitempty"`
	// Grantable is the GPU memory that grants may have together, in bytes; absent unless it is shared.
	Grantable uint64 `json:"grantable,omitempty"`
}

// Closure is why a GPU, one instance of it or its MPS takes no lease. Members see neither who closed it nor what names others.
type Closure struct {
	Kind     string        `json:"kind"`   // held, cordoned and so on
	Reason   string        `json:"reason"` // with what opens it, where a command does
	By       string        `json:"by,omitempty"`
	Since    *time.Time    `json:"since,omitempty"`    // absent: it is what an observation shows
	Until    *time.Time    `json:"until,omitempty"`    // absent: it has no end of its own
	Instance *MIGPlacement `json:"instance,omitempty"` // absent: the whole GPU
	Tenant   string        `json:"tenant,omitempty"`   // that gets no lease there; absent: no tenant does
}

// Cordon is who closed a GPU to new leases. Members see only since when.
type Cordon struct {
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// CordonRequest is the body of POST /v1/gpus/{id}/cordon.
type CordonRequest struct {
	Reason string `json:"reason,omitempty"`
}

// CordonResult answers POST /v1/gpus/{id}/cordon and uncordon.
type CordonResult struct {
	SchemaVersion int      `json:"schema_version"` // 1
	GPU           string   `json:"gpu"`
	Index         int      `json:"index"`
	Changed       bool     `json:"changed"`
	Cordoned      *Cordon  `json:"cordoned,omitempty"` // absent: it takes leases
	Leases        []string `json:"leases"`             // that run on it
}

// Maintenance is who took the node out of service.
type Maintenance struct {
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
	// Driver: the driver is to be replaced. Parked: gpushare uses it no more, until the end of the maintenance.
	Driver bool `json:"driver,omitempty"`
	Parked bool `json:"parked,omitempty"`
	// DriverVersion is that of the driver when the maintenance began; absent if it was not read.
	DriverVersion string `json:"driver_version,omitempty"`
}

// MaintenanceRequest is the body of POST /v1/maintenance.
type MaintenanceRequest struct {
	Driver bool   `json:"driver,omitempty"` // stop MPS and the NVML worker when no lease uses a GPU any more
	Reason string `json:"reason,omitempty"`
}

// MaintenanceResult answers GET and POST /v1/maintenance, and POST /v1/maintenance/off.
type MaintenanceResult struct {
	SchemaVersion int          `json:"schema_version"` // 1
	Changed       bool         `json:"changed"`
	Maintenance   *Maintenance `json:"maintenance,omitempty"` // absent: the node takes leases
	Leases        []string     `json:"leases"`                // that have GPUs
	// Waiting is why the driver is not parked yet, although that was requested; absent when it is, or no lease is in the way.
	Waiting string `json:"waiting,omitempty"`
	// DriverUsers are the processes that keep the kernel's modules of the driver from being unloaded. Only with driver.
	DriverUsers []DriverUser `json:"driver_users,omitempty"`
	// Unread: not every process could be read, so there may be more of them.
	Unread bool `json:"unread,omitempty"`
	// Operation is the change that creates the layouts again at the end; absent if they are there.
	Operation string `json:"operation,omitempty"`
	// Replaced is what changed from the beginning of the maintenance to its end; absent while it lasts, and if the driver was
	// not parked.
	Replaced *ReplacedDriver `json:"replaced,omitempty"`
}

// DriverUser is a process that has device nodes of the driver open.
type DriverUser struct {
	PID     int      `json:"pid"`
	Command string   `json:"command,omitempty"` // its short name
	User    string   `json:"user,omitempty"`
	Unit    string   `json:"unit,omitempty"` // of systemd
	Lease   string   `json:"lease,omitempty"`
	Nodes   []string `json:"nodes"` // as in "nvidia0"
}

// ReplacedDriver compares the driver and the GPUs before and after a maintenance.
type ReplacedDriver struct {
	Before  string   `json:"before,omitempty"` // the version; absent if it was not read
	After   string   `json:"after"`
	Missing []string `json:"missing,omitempty"` // UUIDs of GPUs that are not there any more
	Added   []string `json:"added,omitempty"`   // and that were not there
}

// TimeSlices is how the time of a GPU is shared now.
type TimeSlices struct {
	Enforced  bool   `json:"enforced"`
	Contended bool   `json:"contended"`        // several leases have work; otherwise nothing has to be enforced
	Reason    string `json:"reason,omitempty"` // why it is not enforced
	// Exact is to how many points of ten seconds the shares are exact, as a standard deviation; absent while they are not enforced.
	Exact *float64 `json:"exact,omitempty"`
	// Note says what makes the shares less exact than they can be.
	Note string `json:"note,omitempty"`
	// IdleWhileWaiting is the percent of the last 10 s in which the GPU was idle while a lease with work waited for its slice;
	// absent if the driver does not report the utilisation over time.
	IdleWhileWaiting *float64 `json:"idle_while_waiting,omitempty"`
}

// GPUMemory is in bytes. Total = Used + Free + Reserved.
type GPUMemory struct {
	Total    uint64 `json:"total"`
	Used     uint64 `json:"used"`
	Free     uint64 `json:"free"`
	Reserved uint64 `json:"reserved,omitempty"` // by the driver; 0 where it counts that as used
}

// GrantedMemory is the GPU memory that one grant takes of a GPU.
type GrantedMemory struct {
	Tenant string `json:"tenant"`
	Grant  string `json:"grant"`
	Bytes  uint64 `json:"bytes"`
}

// MIGStatus is the MIG state of one GPU.
type MIGStatus struct {
	Enabled   bool             `json:"enabled"`
	Pending   bool             `json:"pending"`
	Layout    []string         `json:"layout,omitempty"`  // desired; by properties: as the driver names the profile
	Dynamic   bool             `json:"dynamic,omitempty"` // instances are created for leases
	Instances []InstanceStatus `json:"instances,omitempty"`
}

// InstanceStatus is one MIG instance.
type InstanceStatus struct {
	ID        uint32       `json:"id"`
	Profile   string       `json:"profile"`
	Placement MIGPlacement `json:"placement"`
	UUIDs     []string     `json:"uuids,omitempty"` // one for each compute instance; none: an orphan
	Foreign   bool         `json:"foreign,omitempty"`
	Imported  bool         `json:"imported,omitempty"` // created by another program, and imported by an administrator
	Memory    GPUMemory    `json:"memory"`
	Lease     string       `json:"lease,omitempty"`
	Leases    []string     `json:"leases,omitempty"` // of an instance that is shared through MPS, or split
	MPS       *MPSStatus   `json:"mps,omitempty"`    // of such an instance
	// Generation is the number of an instance that gpushare manages. It is never reused; UUIDs are, for the same placement.
	Generation uint64 `json:"generation,omitempty"`
	// RemovedAt is when an idle dynamic instance is removed; absent if it is in use or stays.
	RemovedAt *time.Time `json:"removed_at,omitempty"`
	// Compute are its compute instances if it is split: a lease has one of them. They share the memory of the instance.
	Compute []ComputeStatus `json:"compute,omitempty"`
	// Use is how it was used in the last 10 s; absent where the driver does not report it.
	Use *InstanceUse `json:"use,omitempty"`
	// DeviceNodes are the files that processes open to use it, that of the GPU first; absent if they are not known.
	DeviceNodes []string `json:"device_nodes,omitempty"`
}

// ComputeStatus is one compute instance of a MIG instance that is split.
type ComputeStatus struct {
	UUID    string `json:"uuid"`
	Profile string `json:"profile"` // "1c.3g.20gb"
	Lease   string `json:"lease,omitempty"`
	// DeviceNodes are as of an instance.
	DeviceNodes []string `json:"device_nodes,omitempty"`
}

// MPSStatus is the MPS state of one GPU, or of one MIG instance.
type MPSStatus struct {
	State   string `json:"state"` // running | starting | restarting | stopped | failed | unresponsive
	Unit    string `json:"unit,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Version string `json:"version,omitempty"`
	Clients int    `json:"clients"`
	// MaxClients is the most clients that its server has; absent if the control daemon was not found.
	MaxClients int    `json:"max_clients,omitempty"`
	Bypass     string `json:"bypass"` // report | stop | deny
	Reason     string `json:"reason,omitempty"`
	// Started is when the control daemon started; absent if it does not run.
	Started  *time.Time `json:"started,omitempty"`
	Restarts int        `json:"restarts,omitempty"` // how often it was started again since gpushared started
	Drained  *MPSDrain  `json:"drained,omitempty"`  // absent: it takes leases
}

// ProcessStatus is one process on a GPU.
type ProcessStatus struct {
	PID     int     `json:"pid"`
	Command string  `json:"command,omitempty"`
	Kind    string  `json:"kind"`             // compute | graphics | mps (a client) | mps-server
	Memory  *uint64 `json:"memory,omitempty"` // bytes; absent when unknown
	Tenant  string  `json:"tenant,omitempty"`
	Lease   string  `json:"lease,omitempty"` // empty: unattributed
}

// TenantStatus is one tenant.
type TenantStatus struct {
	Name     string        `json:"name"`
	Priority string        `json:"priority"`
	Members  Members       `json:"members"`
	Limits   []LimitStatus `json:"limits,omitempty"`
	Grants   []GrantStatus `json:"grants"`
	Leases   int           `json:"leases"`
	Frozen   *TenantFreeze `json:"frozen,omitempty"` // absent: no administrator has frozen it
}

// TenantFreeze is who froze a tenant.
type TenantFreeze struct {
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// TenantFreezeResult answers POST /v1/tenants/{name}/freeze and thaw.
type TenantFreezeResult struct {
	SchemaVersion int           `json:"schema_version"` // 1
	Tenant        string        `json:"tenant"`
	Frozen        *TenantFreeze `json:"frozen,omitempty"`
	Changed       bool          `json:"changed"`
	Leases        []LeaseFreeze `json:"leases"` // of the tenant
}

// LeaseFreeze is whether a lease is frozen.
type LeaseFreeze struct {
	Lease  string `json:"lease"`
	Frozen bool   `json:"frozen"`
	Reason string `json:"reason,omitempty"` // why it is not frozen, or is frozen without its tenant
}

// LimitStatus is one host limit: as desired, and as read back.
type LimitStatus struct {
	Name    string `json:"name"` // cpu.quota, memory.max, …
	Desired string `json:"desired"`
	InForce string `json:"in_force,omitempty"` // empty: not enforced
	// Reason is why not; next to InForce, why the kernel enforces what the spec does not ask for.
	Reason string `json:"reason,omitempty"`
}

// GrantStatus is one grant.
type GrantStatus struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`       // mig | mps | timeslice | exclusive
	Text      string   `json:"text"`       // "40% of the time, 30 GiB"
	GPUs      []string `json:"gpus"`       // UUIDs that it may use
	Leases    int      `json:"leases"`     // live
	MaxLeases int      `json:"max_leases"` // 0: only GPU memory limits them
	Queued    int      `json:"queued,omitempty"`
	Reserved  bool     `json:"reserved,omitempty"`
	// Container is how to start a container in it; absent if that is not possible.
	Container *ContainerUse `json:"container,omitempty"`
}

// ContainerUse has the options of a container runtime to start a container in a grant.
type ContainerUse struct {
	Device       string `json:"device"`        // by its CDI name
	CgroupParent string `json:"cgroup_parent"` // required: without it the container is in no lease
	Command      string `json:"command"`       // both, for podman
	// Lease is the lease that waits for the container, and Until how long; absent if the device is that of the grant.
	Lease string     `json:"lease,omitempty"`
	Until *time.Time `json:"until,omitempty"`
}

// NoCDIForMPS is why a grant of MPS has no CDI device.
const NoCDIForMPS = "a client of MPS needs the user of its lease and the host's IPC namespace, and a CDI device sets neither"

// RootlessContainer is the command that runs a container in a grant without root.
func RootlessContainer(tenant, grant string) string {
	line := "gpushare run"
	if tenant != "" {
		line += " -t " + tenant
	}
	if grant != "" {
		line += " --grant " + grant
	}
	return line + " -- sh -c 'podman run --rm $(gpushare env --podman) IMAGE'"
}

// ContainerRequest is the body of POST /v1/containers.
type ContainerRequest struct {
	Tenant string `json:"tenant"`
	Grant  string `json:"grant"`
}

// Lease states, in order.
const (
	LeaseQueued  = "queued"
	LeasePlaced  = "placed"
	LeaseRunning = "running"
	LeaseEnding  = "ending"
	LeaseEnded   = "ended"
)

// Origins of a lease: how its processes came into it.
const (
	OriginRun       = "run"       // gpushare run: the calling process became the command
	OriginDetached  = "detached"  // gpushare run --detach: a service
	OriginAttached  = "attached"  // gpushare lease attach: a process, a unit or a cgroup; it stays in its cgroup
	OriginLogin     = "login"     // the logins of a user that a tenant adopts
	OriginUnit      = "unit"      // a unit that a tenant adopts
	OriginContainer = "container" // a container under the grant's slice
)

// Lease is one running use of a grant.
type Lease struct {
	ID         string   `json:"id"`
	Generation uint64   `json:"generation"` // never reused on this node
	Tenant     string   `json:"tenant"`
	Grant      string   `json:"grant"`
	Kind       string   `json:"kind"`
	State      string   `json:"state"`
	Origin     string   `json:"origin"` // how its processes came into it
	User       string   `json:"user,omitempty"`
	UID        int      `json:"uid"`
	Command    []string `json:"command,omitempty"`
	PID        int      `json:"pid,omitempty"`
	Processes  int      `json:"processes,omitempty"`
	GPUs       []string `json:"gpus,omitempty"`    // UUIDs of GPUs
	Devices    []string `json:"devices,omitempty"` // CUDA_VISIBLE_DEVICES: GPU or MIG UUIDs
	// InstanceGeneration is the generation of its MIG instance. Another instance at the same placement has the same UUIDs.
	InstanceGeneration uint64          `json:"instance_generation,omitempty"`
	Share              *LeaseShare     `json:"share,omitempty"`
	GPUMemory          *LeaseMemory    `json:"gpu_memory,omitempty"`
	Isolation          IsolationStatus `json:"isolation"`
	FrozenFor          []string        `json:"frozen_for,omitempty"`      // why it is frozen; the short freezes of time slices are not listed
	Notices            []string        `json:"notices,omitempty"`         // the last few, newest last
	XIDs               []LeaseXID      `json:"xids,omitempty"`            // the last few that concern it, newest last
	Use                *InstanceUse    `json:"use,omitempty"`             // of the MIG instance that it had alone for the whole interval
	LostGPUs           []LostGPU       `json:"lost_gpus,omitempty"`       // its GPUs that are or were lost while it ran
	Engine             *LeaseEngine    `json:"engine,omitempty"`          // absent: no engine requested it
	Position           int             `json:"position,omitempty"`        // in the queue, from 1
	PositionReason     string          `json:"position_reason,omitempty"` // what the position follows from
	Waiting            string          `json:"waiting,omitempty"`         // why
	ExpectedStart      *time.Time      `json:"expected_start,omitempty"`  // when it starts at the latest, if leases run to their known ends; absent: it is not known
	// StartUnknown is why ExpectedStart of a request that waits is not known.
	StartUnknown string `json:"start_unknown,omitempty"`
	// InUseBy are the first leases in the way of a request that waits, those that end first at first.
	InUseBy []PlaceUse `json:"in_use_by,omitempty"`
	Created time.Time  `json:"created"`
	Started *time.Time `json:"started,omitempty"`
	Expires *time.Time `json:"expires,omitempty"` // the end of max_time
	// MaxTime is the time of its request; absent: it has the max_time of its grant, or none.
	MaxTime *Duration  `json:"max_time,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
	// ElapsedSeconds is how long it ran, by a clock that no program sets; of an ended lease that the account knows.
	ElapsedSeconds *Thousandths `json:"elapsed_seconds,omitempty"`
	// IdleSeconds is for how long it was seen idle, up to now; only if its grant has idle.
	IdleSeconds *float64 `json:"idle_seconds,omitempty"`
	Reason      string   `json:"reason,omitempty"`    // why it ends or ended
	Result      string   `json:"result,omitempty"`    // how its command ended, if that is known: "exited with 3"
	ExitCode    *int     `json:"exit_code,omitempty"` // the same as a shell's exit code: 128 plus the number of the signal that ended it
}

// PlaceUse is a lease in the way of a request. Whose it is is absent if it is of another tenant, unless node.status_visible is all.
type PlaceUse struct {
	Lease  string     `json:"lease,omitempty"`
	Tenant string     `json:"tenant,omitempty"`
	User   string     `json:"user,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	Until  *time.Time `json:"until,omitempty"` // it ends at the latest then; absent: it has no time limit
}

// LeaseList answers GET /v1/leases.
type LeaseList struct {
	SchemaVersion int     `json:"schema_version"` // 1
	Leases        []Lease `json:"leases"`
}

// LeaseFreezes is how often a lease was frozen in the last minute for the time slices of others, and for how long. A request that
// arrives at it waits for up to LongestSeconds.
type LeaseFreezes struct {
	Count          int     `json:"count"`
	Seconds        float64 `json:"seconds"`
	LongestSeconds float64 `json:"longest_seconds"`
	// Of requests that arrived at any time of the minute half waited for its thaw no longer than WaitP50Seconds, and 99 of 100 no longer
	// than WaitP99Seconds: computed from the times at which it was frozen.
	WaitP50Seconds float64 `json:"wait_p50_seconds"`
	WaitP99Seconds float64 `json:"wait_p99_seconds"`
}

// LeaseShare is a share of a GPU's time or threads.
type LeaseShare struct {
	Entitled  float64  `json:"entitled"`            // percent, of the grant
	Latency   string   `json:"latency,omitempty"`   // low: it is not frozen while it uses less than its share
	Due       *float64 `json:"due,omitempty"`       // percent of the GPU's time that it gets now next to the other leases with work; absent if it has none
	Occupancy *float64 `json:"occupancy,omitempty"` // percent of the last 10 s in which it had the GPU; absent if the share is not enforced
	Busy      *float64 `json:"busy,omitempty"`      // percent of the last 10 s, estimated from the driver's samples
	StdErr    *float64 `json:"std_error,omitempty"` // of Busy, in points
	OfUsed    *float64 `json:"of_used,omitempty"`   // Busy, as percent of the busy time of all leases of the GPU
	// State says whether it has its share of the last ten seconds, as measured: met | less (it needs less, and has that) | unmet |
	// unmeasured. Absent if it does not share the time of a GPU.
	State string `json:"state,omitempty"`
	// Within is by how many points it may have had less in ten seconds for which State is met or less; absent otherwise.
	Within *float64 `json:"within,omitempty"`
	// Why is the reason of State: what keeps it from its share, or what was not measured.
	Why string `json:"why,omitempty"`
	// Freezes is how often it was frozen in the last minute for the slices of others; absent if its share is not enforced.
	Freezes  *LeaseFreezes `json:"freezes,omitempty"`
	Enforced bool          `json:"enforced"`           // the share is enforced, and was not measured to be unmet
	Advisory bool          `json:"advisory,omitempty"` // its processes only ask for it, and can ask for another
	Reason   string        `json:"reason,omitempty"`   // why it is not
}

// LeaseMemory is GPU memory in bytes.
type LeaseMemory struct {
	Limit   uint64 `json:"limit"`   // of the grant, for all its leases on one GPU
	Used    uint64 `json:"used"`    // by this lease
	Backend string `json:"backend"` // mig | driver | mps | reactive | observe | none: what enforces the limit
	Hard    bool   `json:"hard"`    // no process of the grant can allocate more, except as managed memory
	// Advisory: nothing but the environment of the lease's processes asks for the limit.
	Advisory bool `json:"advisory,omitempty"`
	// Reason is why this backend enforces it, and why no stronger one does.
	Reason string `json:"reason,omitempty"`
	Stage  string `json:"stage,omitempty"` // notice | over | frozen | stopping
	// Unknown: Used lacks what was never measured. LastKnown: Used was measured then, and newer measurements failed.
	Unknown   bool       `json:"unknown,omitempty"`
	LastKnown *time.Time `json:"last_known,omitempty"`
	// Peak is the most on one GPU; only of an ended lease that the account knows.
	Peak *uint64 `json:"peak,omitempty"`
}

// Qualifier is what follows the limit wherever it is shown, if nothing enforces it.
func (m *LeaseMemory) Qualifier() string {
	if m == nil || m.Limit == 0 {
		return ""
	}
	if m.Unknown && m.Backend == "reactive" {
		return " (not enforced)" // What is not measured is not compared with a limit.
	}
	return MemoryQualifier(m.Backend, m.Advisory)
}

// MemoryQualifier is what follows an amount of GPU memory wherever it is shown, by what enforces it. Empty if something does.
func MemoryQualifier(backend string, advisory bool) string {
	switch {
	case advisory:
		return " (advisory)"
	case backend == "observe":
		return " (reported only)"
	}
	return ""
}

// IsolationStatus is the isolation of a lease, as read back.
type IsolationStatus struct {
	Cgroup  string `json:"cgroup,omitempty"`
	Unit    string `json:"unit,omitempty"`
	Devices bool   `json:"devices"` // device rules are enforced
	Freeze  bool   `json:"freeze"`  // it can be frozen
	// MemoryNodes are the NUMA nodes that its memory comes from (cpu.numa: strict), as "0-1", as read back; empty for all.
	MemoryNodes string   `json:"memory_nodes,omitempty"`
	NotEnforced []string `json:"not_enforced,omitempty"` // what is not enforced, and why
	// DevicesReason is why device rules are not enforced; empty if they are, or if an older daemon created the lease.
	DevicesReason string `json:"devices_reason,omitempty"`
}

// timeShare begins what NotEnforced says of a time share.
const timeShare = "its time share: "

// TimeShareOf is what NotEnforced says of a time share that is not enforced.
func TimeShareOf(why string) string { return timeShare + why }

// SetFreeze sets whether the lease can be frozen for the time shares of others, and why not, as it is now. The list is a new one.
func (s *IsolationStatus) SetFreeze(why string) {
	s.Freeze = why == ""
	s.NotEnforced = slices.DeleteFunc(slices.Clone(s.NotEnforced), func(line string) bool { return strings.HasPrefix(line, timeShare) })
	if why != "" {
		s.NotEnforced = append(s.NotEnforced, TimeShareOf(why))
	}
}

// LeaseRequest is the body of POST /v1/leases. The answer is a Lease with Environment once it runs. The calling
// process is isolated; it then executes its command.
type LeaseRequest struct {
	Tenant string `json:"tenant,omitempty"` // empty: the caller's only one
	Grant  string `json:"grant,omitempty"`  // empty: selected automatically
	Kind   string `json:"kind,omitempty"`   // "mig:2g.10gb", "exclusive", "timeslice", "mps"
	// GPUs are where it may be placed, each by its index or UUID; empty: on all that the grant may use.
	GPUs    []string `json:"gpus,omitempty"`
	Command []string `json:"command"`
	// MaxTime is how long it runs, at most the max_time of its grant; absent: as long as that.
	MaxTime *Duration `json:"max_time,omitempty"`
	Wait    *Duration `json:"wait,omitempty"` // absent: refuse at once if nothing is free
	// Key is the client's own identifier of this request. The same key after a restart of the daemon gets the same
	// position in the queue, or the same lease.
	Key string `json:"key,omitempty"`
	// Detach starts the command as a service, instead of in the calling process.
	Detach *Detach `json:"detach,omitempty"`
}

// Detach describes how to start a detached command. Its user is that of the caller on the socket.
type Detach struct {
	Path        string   `json:"path"` // of the program, absolute
	Dir         string   `json:"dir"`  // working directory, absolute
	Environment []string `json:"environment,omitempty"`
	UMask       int      `json:"umask"`
}

// AttachRequest is the body of POST /v1/leases/attach. Exactly one of PID, Unit and Cgroup is set. The
// processes stay in their cgroup. The answer is that of POST /v1/leases.
type AttachRequest struct {
	Tenant string    `json:"tenant,omitempty"`
	Grant  string    `json:"grant,omitempty"`
	Kind   string    `json:"kind,omitempty"`
	PID    int       `json:"pid,omitempty"`    // a process and its descendants
	Unit   string    `json:"unit,omitempty"`   // all processes of a unit of the service manager
	Cgroup string    `json:"cgroup,omitempty"` // all processes in a cgroup and below it
	Name   string    `json:"name,omitempty"`   // name in lists; empty: the attach target
	Wait   *Duration `json:"wait,omitempty"`   // as in LeaseRequest

	// GPUs and MaxTime are as in LeaseRequest.
	GPUs    []string  `json:"gpus,omitempty"`
	MaxTime *Duration `json:"max_time,omitempty"`
}

// LeaseGrant is the answer to POST /v1/leases: NDJSON, first any number of these with only Lease (queued, with its
// position), last one with Environment or Error.
type LeaseGrant struct {
	Lease       *Lease            `json:"lease,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	Unset       []string          `json:"unset,omitempty"`
	Selected    string            `json:"selected,omitempty"` // which grant was selected, and why, in one line
	Warnings    []string          `json:"warnings,omitempty"`
	Error       *Error            `json:"error,omitempty"`
	ExitCode    int               `json:"exit_code,omitempty"` // with Error: the command could not be run; 126 or 127, as in a shell
}

// Plan has the steps of a change.
type Plan struct {
	SchemaVersion int        `json:"schema_version"` // 1
	Generation    uint64     `json:"generation"`     // of the spec that it leads to
	Empty         bool       `json:"empty"`
	Steps         []PlanStep `json:"steps"`
	// Renames are the tenants and grants that get another name. Their leases go on.
	Renames  []PlanRename `json:"renames,omitempty"`
	Warnings []string     `json:"warnings,omitempty"`
	Disturbs []string     `json:"disturbs,omitempty"`
	// Engines are those whose jobs may have a GPU that this changes, also jobs that do not use it now: gpushare does not know of them.
	Engines []string  `json:"engines,omitempty"`
	Held    []HeldGPU `json:"held,omitempty"` // the GPUs that it leaves as they are, because they do not answer
	// Unreachable is what differs from the spec, or could not be read, and has no step, with the reasons.
	Unreachable []Unreachable `json:"unreachable,omitempty"`
	Observe     bool          `json:"observe,omitempty"` // enforce: observe; the steps are not carried out
	Diff        *Diff         `json:"diff,omitempty"`    // if requested
	// EstimatedSeconds is the expected duration with GPUs in parallel, from measurements on this node; absent if a kind of
	// step was never measured.
	EstimatedSeconds float64 `json:"estimated_seconds,omitempty"`
}

// PlanRename is a tenant, or a grant of one, that gets another name.
type PlanRename struct {
	Tenant  string `json:"tenant"`          // before; of a grant: its tenant
	Grant   string `json:"grant,omitempty"` // before; absent: the tenant itself is renamed
	To      string `json:"to"`
	Leases  int    `json:"leases"`  // that go on
	Waiting int    `json:"waiting"` // requests that wait on
	Text    string `json:"text"`
}

// Unreachable is a part of the node that no step of a plan brings to the spec.
type Unreachable struct {
	GPU    string `json:"gpu,omitempty"` // absent: it is about the node
	Reason string `json:"reason"`
	Hint   string `json:"hint,omitempty"` // what helps
}

// Complete reports whether the steps of the plan lead to the whole spec.
func (p *Plan) Complete() bool { return len(p.Held)+len(p.Unreachable) == 0 }

// HeldGPU is a GPU that a change leaves as it is, because it does not answer.
type HeldGPU struct {
	GPU     string `json:"gpu"`
	Index   int    `json:"index"`   // -1: it could not be read since the daemon started
	Reason  string `json:"reason"`  // "the GPU is lost"
	Command string `json:"command"` // tries it again
}

// Name is the GPU for people.
func (h *HeldGPU) Name() string {
	if h.Index < 0 {
		return h.GPU
	}
	return "GPU " + strconv.Itoa(h.Index)
}

// StepTime is the measured duration of steps of one kind on one model of GPU.
type StepTime struct {
	Model       string  `json:"model,omitempty"` // empty: of the host
	Kind        string  `json:"kind"`            // "mig.create"
	Count       uint64  `json:"count"`
	MeanSeconds float64 `json:"mean_seconds"` // mean of about the last eight
}

// PlanStep is one step for people and tools.
type PlanStep struct {
	ID               int      `json:"id"`
	Kind             string   `json:"kind"` // "mig.create"
	GPU              string   `json:"gpu,omitempty"`
	Text             string   `json:"text"`
	Reason           string   `json:"reason,omitempty"`
	Disruption       string   `json:"disruption"`
	Disturbs         []string `json:"disturbs,omitempty"`
	Irreversible     string   `json:"irreversible,omitempty"`      // why it cannot be undone; empty: it can, or needs no undo
	EstimatedSeconds float64  `json:"estimated_seconds,omitempty"` // from measurements on this node
	State            string   `json:"state,omitempty"`             // of an operation: pending | doing | done | failed | undone
	Seconds          float64  `json:"seconds,omitempty"`
	WaitsFor         string   `json:"waits_for,omitempty"` // of a step that is being done: what it waits for
	Error            string   `json:"error,omitempty"`
}

// Diff is before and after, as YAML text.
type Diff struct {
	Before string `json:"before"`
	After  string `json:"after"`
}

// Reloaded answers POST /v1/reload.
type Reloaded struct {
	SchemaVersion int      `json:"schema_version"`
	Reloaded      bool     `json:"reloaded"`
	NeedsRestart  []string `json:"needs_restart"` // settings that changed and are read at start only
	// Applied is the outcome for spec_file; absent without one, and on an unmanaged node.
	Applied *ApplyResult `json:"applied,omitempty"`
}

// ApplyResult answers PUT /v1/spec: 200 with the plan if nothing is left to do (checked, or no changes), 202 with the
// operation otherwise.
type ApplyResult struct {
	Generation uint64     `json:"generation"`
	Changed    bool       `json:"changed"`
	Checked    bool       `json:"checked,omitempty"`
	Plan       Plan       `json:"plan"`
	Operation  *Operation `json:"operation,omitempty"`
}

// Operation is a change as the API shows it.
type Operation struct {
	ID       string     `json:"id"`
	Kind     string     `json:"kind"`    // apply | retry | unmanage | import | remove | mps-restart | dynamic | restore | resume
	State    string     `json:"state"`   // running | done | degraded | failed
	Version  uint64     `json:"version"` // grows with every change of the operation: wait with ?after=
	By       string     `json:"by"`
	Plan     Plan       `json:"plan"` // with the states of its steps
	Error    *Error     `json:"error,omitempty"`
	Started  time.Time  `json:"started"`
	Finished *time.Time `json:"finished,omitempty"`
}

// OperationList answers GET /v1/operations: those that run and the last that ended, the oldest first.
type OperationList struct {
	SchemaVersion int                `json:"schema_version"` // 1
	Operations    []OperationSummary `json:"operations"`
}

// OperationSummary is an operation without its steps.
type OperationSummary struct {
	ID          string     `json:"id"`
	Kind        string     `json:"kind"`
	State       string     `json:"state"`
	By          string     `json:"by"`
	Generation  uint64     `json:"generation"` // that it puts in force, or that was in force
	StepCount   int        `json:"step_count"`
	StepsEnded  int        `json:"steps_ended"`
	CurrentStep string     `json:"current_step,omitempty"` // the first one that runs
	Error       *Error     `json:"error,omitempty"`
	Started     time.Time  `json:"started"`
	Finished    *time.Time `json:"finished,omitempty"`
}

// Summary leaves out the steps.
func (o *Operation) Summary() OperationSummary {
	s := OperationSummary{
		ID: o.ID, Kind: o.Kind, State: o.State, By: o.By, Generation: o.Plan.Generation, StepCount: len(o.Plan.Steps),
		Error: o.Error, Started: o.Started, Finished: o.Finished,
	}
	for i := range o.Plan.Steps {
		switch step := &o.Plan.Steps[i]; step.State {
		case "", "pending":
		case "doing", "undoing":
			if s.CurrentStep == "" {
				s.CurrentStep = step.Text
			}
		default:
			s.StepsEnded++
		}
	}
	return s
}

// SpecDocument answers GET /v1/spec.
type SpecDocument struct {
	Generation uint64    `json:"generation"`
	By         string    `json:"by"`
	At         time.Time `json:"at"`
	YAML       string    `json:"yaml"`
	// Spec is the same as an object, without defaults and without base, for programs without a YAML library. PUT /v1/spec
	// accepts it as JSON. Absent: this version cannot read the YAML.
	Spec *Spec `json:"spec,omitempty"`
}

// SpecHistory answers GET /v1/history: the last accepted specs, the oldest first.
type SpecHistory struct {
	SchemaVersion int            `json:"schema_version"` // 1
	Revisions     []SpecRevision `json:"revisions"`
}

// SpecRevision is one accepted spec.
type SpecRevision struct {
	Generation uint64    `json:"generation"`
	By         string    `json:"by"`
	At         time.Time `json:"at"`
	InForce    bool      `json:"in_force,omitempty"`
	Unmanaged  string    `json:"unmanaged,omitempty"` // restrictions | all: it unmanaged the node; after all there is no spec
	// Changes is what changed from the spec before, one text for each key; absent if that one is not kept, or nothing changed.
	Changes []string `json:"changes,omitempty"`
}

// Event is one line of GET /v1/events.
type Event struct {
	Seq     uint64    `json:"seq"`
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"` // lease.started, memory.notice, share.frozen, gpu.held, change.done, gap, …
	GPU     string    `json:"gpu,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Lease   string    `json:"lease,omitempty"`
	Message string    `json:"message"`

	// User is whose lease it is about, for the daemon: events of one user do not push out those of others. It is not sent.
	User string `json:"-"`
}

// ErrorTrailer is the trailer of an answer of text that ended with an error, as JSON.
const ErrorTrailer = "Gpushare-Error"

// Events of a stream itself, when its reader has lost a right.
const (
	EventRoleLost  = "role.lost"  // some events do not come any more
	EventRoleEnded = "role.ended" // none does: the last line
)

// Doctor answers GET /v1/doctor.
type Doctor struct {
	SchemaVersion int     `json:"schema_version"` // 1
	Checks        []Check `json:"checks"`
}

// Check is one finding.
type Check struct {
	Name    string `json:"name"`
	Result  string `json:"result"` // ok | warn | fail
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// Acknowledged: it found a condition that an administrator acknowledged, and is therefore ok.
	Acknowledged *Acknowledgement `json:"acknowledged,omitempty"`
}

// Explanation answers GET /v1/explain: what is enforced for a lease or a tenant, by what, and what is not and why.
type Explanation struct {
	SchemaVersion int    `json:"schema_version"` // 1
	Name          string `json:"name"`
	Text          string `json:"text"` // description
	Rules         []Rule `json:"rules"`
}

// Rule is one restriction and whether it is enforced.
type Rule struct {
	What     string `json:"what"`
	Desired  string `json:"desired,omitempty"`
	Enforced bool   `json:"enforced"`
	By       string `json:"by,omitempty"`     // what enforces it
	Reason   string `json:"reason,omitempty"` // why it is not enforced
	// Advisory: it is not enforced, but processes that keep the environment of the lease ask for it.
	Advisory bool `json:"advisory,omitempty"`
	// Accuracy is how exact it is, as measured; absent if nothing was measured, or if it is exact.
	Accuracy string `json:"accuracy,omitempty"`
}

// Environment answers GET /v1/env.
type Environment struct {
	Lease       string            `json:"lease,omitempty"`
	Environment map[string]string `json:"environment"`
	Unset       []string          `json:"unset,omitempty"`
	// Podman are the options of 'podman run' for a container in the lease; only if they were asked for.
	Podman []string `json:"podman,omitempty"`
}

// Over applies the environment to base: it removes Unset and sets Environment, in sorted order.
func (e *Environment) Over(base []string) []string {
	out := make([]string, 0, len(base)+len(e.Environment))
	for _, kv := range base {
		name, _, _ := strings.Cut(kv, "=")
		if _, ok := e.Environment[name]; !ok && !slices.Contains(e.Unset, name) {
			out = append(out, kv)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(e.Environment)) {
		out = append(out, k+"="+e.Environment[k])
	}
	return out
}

// InstancesRequest is the body of POST /v1/mig/import and /v1/mig/remove: instances of one GPU.
type InstancesRequest struct {
	GPU   string   `json:"gpu"`   // its index or UUID
	Start []uint32 `json:"start"` // the memory slice at which each begins
	// Force allows the removal of instances that could not be created again. It stops no process.
	Force bool `json:"force,omitempty"`
}

// MIGList answers GET /v1/mig: profiles, placements and instances of every GPU with MIG.
type MIGList struct {
	SchemaVersion int         `json:"schema_version"`
	GPUs          []MIGDevice `json:"gpus"`
}

// MIGDevice is one GPU of a MIGList.
type MIGDevice struct {
	Index     int           `json:"index"`
	UUID      string        `json:"uuid"`
	Model     string        `json:"model"`
	Mode      string        `json:"mode"`    // of the spec; unmanaged without an entry
	Enabled   bool          `json:"enabled"` // MIG mode is on
	Width     uint32        `json:"width"`   // memory slices; 0 if the profiles are not known
	Profiles  []MIGProfile  `json:"profiles"`
	Instances []MIGInstance `json:"instances"`
	// ProfilesAssumed: the driver reports profiles only in MIG mode, which is off; these are those that the model is known to have.
	ProfilesAssumed bool `json:"profiles_assumed,omitempty"`
}

// MIGProfile is one profile, as this GPU reports it.
type MIGProfile struct {
	ID         uint32         `json:"id"`
	Name       string         `json:"name"`
	Slices     uint32         `json:"slices"` // compute slices
	Memory     uint64         `json:"memory"` // bytes
	SMs        uint32         `json:"sms"`
	Max        uint32         `json:"max"`
	Placements []MIGPlacement `json:"placements"`
	Attributes []string       `json:"attributes,omitempty"`
}

// MIGPlacement is a run of slices: memory slices of a GPU, or compute slices of an instance.
type MIGPlacement struct {
	Start uint32 `json:"start"`
	Size  uint32 `json:"size"`
}

// MIGInstance is one existing instance.
type MIGInstance struct {
	ProfileID uint32         `json:"profile_id"`
	Profile   string         `json:"profile"`
	Placement MIGPlacement   `json:"placement"`
	Compute   []MIGPlacement `json:"compute"` // none: an orphan
	InUse     bool           `json:"in_use"`  // a lease or a process uses it
	Foreign   bool           `json:"foreign,omitempty"`
	Imported  bool           `json:"imported,omitempty"` // it stays without being in the layout, until its slices are needed
	Kept      bool           `json:"kept,omitempty"`     // a process uses it that --force does not stop: nothing removes it
	// Irreversible is why it could not be created again as it was; empty: it could. Only --force destroys such an instance.
	Irreversible string `json:"irreversible,omitempty"`
}
