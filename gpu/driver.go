package gpu

import (
	"context"
	"time"
)

// UUID names one GPU ("GPU-…") or one MIG device ("MIG-…") as the driver prints it.
type UUID string

// Driver is what the product asks of the GPUs of one node.
//
// Every method may block for as long as the hardware does: callers give a context with a deadline. Methods return
// *Error; compare with errors.Is against the Err… sentinels. Methods that change the node need root on real hardware.
// All methods may be called concurrently; implementations serialise per GPU.
type Driver interface {
	// Node reads the versions, the optional features by name and the GPUs that the driver enumerates.
	Node(ctx context.Context) (NodeInfo, error)
	// Snapshot reads all that changes of one GPU: memory, modes, instances, processes. One worker message.
	Snapshot(ctx context.Context, id UUID) (Snapshot, error)
	// Profiles reads what this GPU can be partitioned into, with every placement. It does not depend on what is
	// present. ErrNotSupported when the GPU has no MIG, or when it only answers with MIG mode on and it is off.
	Profiles(ctx context.Context, id UUID) (Profiles, error)
	// Memory reads the memory of one GPU. It is the cheap, fast path.
	Memory(ctx context.Context, id UUID) (Memory, error)
	// Processes reads the processes that hold memory on one GPU, its MIG instances and MPS clients included.
	Processes(ctx context.Context, id UUID) ([]Process, error)
	// Utilization reads the per-process samples newer than since (the driver's clock, µs; 0 for all that is kept)
	// and returns the newest timestamp. No samples is no error. ErrNotSupported with MIG mode on.
	Utilization(ctx context.Context, id UUID, since uint64) ([]UtilSample, uint64, error)
	// NVLinks reads where the NVLinks of one GPU lead; a GPU without any has the zero value. It is dozens of calls for what
	// stays while the host runs: for a reset, and for no look at the node. ErrMissing when the driver lacks the functions.
	NVLinks(ctx context.Context, id UUID) (NVLinks, error)

	// SetMIGMode asks for MIG mode on or off. A nil error does not mean that it is active: read ModeChange.
	SetMIGMode(ctx context.Context, id UUID, on bool) (ModeChange, error)
	// CreateInstance makes one GPU instance at exactly this placement, with its compute instances. When a compute
	// instance fails the GPU instance is destroyed again before returning. ErrInsufficientResources when the
	// placement is taken.
	CreateInstance(ctx context.Context, id UUID, want NewInstance) (Instance, error)
	// CompleteInstance adds to a GPU instance the compute instances that it lacks (a creation that was cut short).
	CompleteInstance(ctx context.Context, id UUID, gi uint32, compute []NewCompute) (Instance, error)
	// DestroyInstance destroys the compute instances and then the GPU instance. ErrInUse when a process holds one.
	DestroyInstance(ctx context.Context, id UUID, gi uint32) error
	// SetComputeMode sets the compute mode.
	SetComputeMode(ctx context.Context, id UUID, mode ComputeMode) error

	// Events calls f for every event until ctx ends or the driver is closed, and returns why. It blocks.
	Events(ctx context.Context, f func(Event)) error
	// Close lets go of the driver.
	Close() error
}

// NodeInfo is what the driver says of the whole node.
type NodeInfo struct {
	DriverVersion  string     `json:"driver_version"`
	LibraryVersion string     `json:"library_version"`
	CUDAVersion    int        `json:"cuda_version"`      // 1000·major + 10·minor
	Library        string     `json:"library"`           // the path or name that was loaded
	Missing        []string   `json:"missing,omitempty"` // optional symbols that this library lacks
	GPUs           []Identity `json:"gpus"`
}

// Identity is what does not change of one GPU while the driver stays loaded, but for Minor, which a mode change may move.
type Identity struct {
	UUID   UUID   `json:"uuid"`
	Index  int    `json:"index"`  // the driver's enumeration order; not stable across boots
	Minor  int    `json:"minor"`  // of /dev/nvidia<minor>
	PCI    string `json:"pci"`    // domain:bus:device.function, lower case, "0000:07:00.0"
	Model  string `json:"model"`  // "NVIDIA A100-SXM4-40GB"
	Memory uint64 `json:"memory"` // bytes, reserved included
	// NUMANode is the node of the PCI device as the kernel tells, -1 when it does not.
	NUMANode int  `json:"numa_node"`
	Display  bool `json:"display,omitempty"` // a display is attached or active
	// Error says why the rest could not be read (a lost GPU keeps its place in the list).
	Error string `json:"error,omitempty"`
}

// Memory is in bytes. Total = Reserved + Used + Free; Reserved is 0 where the driver does not tell it apart.
type Memory struct {
	Total    uint64 `json:"total"`
	Reserved uint64 `json:"reserved"`
	Used     uint64 `json:"used"`
	Free     uint64 `json:"free"`
}

// Snapshot is one consistent reading of one GPU.
type Snapshot struct {
	Identity    Identity    `json:"identity"`
	Memory      Memory      `json:"memory"`
	Utilization *int        `json:"utilization,omitempty"` // percent of the last sample period; nil when unknown (always with MIG)
	ComputeMode ComputeMode `json:"compute_mode"`
	MIG         MIGState    `json:"mig"`
	Instances   []Instance  `json:"instances,omitempty"` // sorted by placement start
	Processes   []Process   `json:"processes,omitempty"` // sorted by pid
}

// NVLinks is where the NVLinks of one GPU lead, which NVML tells link by link: nvmlDeviceGetNvLinkState, and of each link
// that is up nvmlDeviceGetNvLinkRemoteDeviceType and nvmlDeviceGetNvLinkRemotePciInfo. The numbers count links of
// this GPU, of which no board has more than 36.
type NVLinks struct {
	// Peers are the GPUs at the other end of links that are up, by PCI address as in Identity: sorted, each once. They may
	// be GPUs that this node does not see.
	Peers    []string `json:"peers,omitempty"`
	Switches int      `json:"switches,omitempty"` // up, to an NVSwitch
	Unknown  int      `json:"unknown,omitempty"`  // up, to something else, or to what the driver does not tell
	Down     int      `json:"down,omitempty"`     // not up: whether a bridge is on them is not known
}

// MIGState is the MIG mode of one GPU.
type MIGState struct {
	Capable bool `json:"capable"`
	Current bool `json:"current"`
	Pending bool `json:"pending"`
	// Resetless: a mode change needs no GPU reset (NVML field 184). nil when the driver does not tell.
	Resetless *bool `json:"resetless,omitempty"`
}

// Placement is a run of memory slices. The grid is as wide as the device says: 4, 8 and 12 are known.
type Placement struct {
	Start uint32 `json:"start"`
	Size  uint32 `json:"size"`
}

// Overlaps tells whether both need one slice.
func (p Placement) Overlaps(q Placement) bool {
	return p.Start < q.Start+q.Size && q.Start < p.Start+p.Size
}

// Instance is one GPU instance with its compute instances. Without any it is an orphan.
type Instance struct {
	ID        uint32            `json:"id"`
	ProfileID uint32            `json:"profile_id"` // the driver's info.Id, which is not the profile enum
	Placement Placement         `json:"placement"`
	Compute   []ComputeInstance `json:"compute,omitempty"`
	Memory    Memory            `json:"memory"`
}

// ComputeInstance is one compute instance, which is one MIG device.
type ComputeInstance struct {
	ID        uint32 `json:"id"`
	ProfileID uint32 `json:"profile_id"`
	// Placement is in compute slices of the GPU instance.
	Placement Placement `json:"placement"`
	// UUID is a function of GPU and placement: it comes back after destroy and create. Never a lease's identity.
	UUID UUID `json:"uuid"`
}

// NewInstance is what CreateInstance is asked for.
type NewInstance struct {
	ProfileID uint32       `json:"profile_id"`
	Placement Placement    `json:"placement"`
	Compute   []NewCompute `json:"compute"` // empty: one compute instance that takes all slices
}

// NewCompute is one compute instance to make.
type NewCompute struct {
	Slices    uint32     `json:"slices"`
	Placement *Placement `json:"placement,omitempty"` // nil: the driver chooses
}

// Profiles is what one device can be partitioned into.
type Profiles struct {
	// Width is the number of memory slices: the largest start+size among the placements.
	Width uint32    `json:"width"`
	GI    []Profile `json:"gi"` // sorted by id
}

// Profile is one GPU-instance profile as this device reports it.
type Profile struct {
	ID         uint32           `json:"id"`   // info.Id
	Name       string           `json:"name"` // "3g.20gb", "1g.5gb+me"
	Slices     uint32           `json:"slices"`
	Memory     uint64           `json:"memory"` // bytes
	Max        uint32           `json:"max"`    // instances of this profile on an empty GPU
	SMs        uint32           `json:"sms"`
	Placements []Placement      `json:"placements"`
	Attributes []string         `json:"attributes,omitempty"` // of "me", "me.all", "-me", "gfx"; sorted
	Compute    []ComputeProfile `json:"compute,omitempty"`    // known only while an instance of it lives, else empty
}

// ComputeProfile is one compute-instance profile.
type ComputeProfile struct {
	ID     uint32 `json:"id"`
	Slices uint32 `json:"slices"`
	Max    uint32 `json:"max"`
}

// ProcessKind says in which of the driver's lists a process was seen.
type ProcessKind string

// The kinds of process.
const (
	ComputeProcess  ProcessKind = "compute"
	GraphicsProcess ProcessKind = "graphics"
	MPSProcess      ProcessKind = "mps" // an MPS client
)

// Process is one process that holds a GPU.
type Process struct {
	PID    int         `json:"pid"` // in the pid namespace of the caller of the driver
	Kind   ProcessKind `json:"kind"`
	Memory *uint64     `json:"memory,omitempty"` // bytes; nil when the driver does not tell: unknown, neither 0 nor huge
	GI     *uint32     `json:"gi,omitempty"`
	CI     *uint32     `json:"ci,omitempty"`
}

// UtilSample says which process was on the engine at one time. Each sample names one process.
type UtilSample struct {
	PID  int    `json:"pid"`
	Time uint64 `json:"time"` // µs, the driver's clock
	SM   int    `json:"sm"`   // percent
	Mem  int    `json:"mem"`  // percent
}

// ComputeMode is the compute mode of one GPU.
type ComputeMode string

// The compute modes.
const (
	ComputeDefault          ComputeMode = "default"
	ComputeExclusiveProcess ComputeMode = "exclusive-process"
	ComputeProhibited       ComputeMode = "prohibited"
	ComputeModeUnknown      ComputeMode = ""
)

// ModeChange is the outcome of SetMIGMode, read back after the call.
type ModeChange struct {
	Current bool `json:"current"`
	Pending bool `json:"pending"`
	// Activation says why current differs from pending: nil, ErrInUse (the GPU is not idle) or ErrResetRequired.
	Activation error `json:"-"`
	Minor      int   `json:"minor"` // may have moved
}

// EventKind is what happened.
type EventKind string

// The events that are watched where the device supports them.
const (
	EventXID       EventKind = "xid"
	EventMIGConfig EventKind = "mig-config"
	EventECC       EventKind = "ecc"
	EventLost      EventKind = "unavailable"
)

// Event is one event of one GPU.
type Event struct {
	Time time.Time `json:"time"`
	GPU  UUID      `json:"gpu"`
	Kind EventKind `json:"kind"`
	XID  uint64    `json:"xid,omitempty"`
	GI   *uint32   `json:"gi,omitempty"`
	CI   *uint32   `json:"ci,omitempty"`
}
