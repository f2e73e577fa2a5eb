package gpu

import (
	"context"
	"strconv"
	"time"
)

// UUID names one GPU ("GPU-…") or one MIG device ("MIG-…") as the driver prints it.
type UUID string

// Driver is the interface to the GPUs of one node.
//
// Every method may block as long as the hardware does: callers pass a context with a deadline. Methods return *Error;
// compare with errors.Is against the Err… sentinels. Methods that change the node need root on real hardware. All methods
// may be called concurrently; implementations serialise per GPU.
type Driver interface {
	// Node reads the versions, the optional features by name and the GPUs that the driver enumerates.
	Node(ctx context.Context) (NodeInfo, error)
	// Snapshot reads the state of one GPU: memory, modes, instances, processes. It is one worker message.
	Snapshot(ctx context.Context, id UUID) (Snapshot, error)
	// Profiles reads the MIG profiles of this GPU with all placements. The result does not depend on the present
	// instances. ErrNotSupported when the GPU has no MIG, or when the driver reports profiles only with MIG mode on and
	// it is off.
	Profiles(ctx context.Context, id UUID) (Profiles, error)
	// Memory reads the memory of one GPU. It is the cheapest reading.
	Memory(ctx context.Context, id UUID) (Memory, error)
	// Processes reads the processes that use memory of one GPU, including its MIG instances and MPS clients.
	Processes(ctx context.Context, id UUID) ([]Process, error)
	// InstanceProcesses reads at least the processes of one MIG instance, by its id: it takes a fraction of the time of Processes, which
	// reads those of every instance. Without such an instance it is the same as Processes.
	InstanceProcesses(ctx context.Context, id UUID, gi uint32) ([]Process, error)
	// Utilization reads the per-process samples newer than since (the driver's clock, µs; 0 for all) and returns the
	// newest timestamp. It is not an error if there are no samples. ErrNotSupported with MIG mode on. Drivers keep the
	// samples of ten seconds, and add them up: see UtilSample.
	Utilization(ctx context.Context, id UUID, since uint64) ([]UtilSample, uint64, error)
	// UtilizationSeries reads the GPU's own utilisation samples newer than since (the driver's clock, µs; 0 for all). An
	// idle GPU adds no samples, so it is not an error if there are none. The driver keeps the last 100 samples, some 16 s
	// of a busy GPU (seen by gonvml): read them at least every 10 s. ErrNotSupported with MIG mode on and on boards without this series,
	// ErrMissing when the library lacks the function.
	UtilizationSeries(ctx context.Context, id UUID, since uint64) (Series, error)
	// InstanceUse reads how these GPU instances were used since the last call: the driver compares its counters now with those of that
	// call. What has no result yet, was destroyed or is read again within LeastUse is left out. ErrNotSupported only on boards without
	// these counters (before Hopper), ErrMissing when the library lacks the functions. It keeps no instance from being destroyed.
	InstanceUse(ctx context.Context, id UUID, instances []uint32) ([]InstanceUse, error)
	// NVLinks reads the peers of the NVLinks of one GPU; the zero value means that it has none. It needs dozens of calls,
	// and the result does not change while the host runs: call it before a reset, not in every observation. ErrMissing
	// when the driver lacks the functions.
	NVLinks(ctx context.Context, id UUID) (NVLinks, error)
	// Health reads the sensors and the error counters of one GPU. It needs dozens of calls, more with NVLinks: read it once a
	// minute, not in every observation. What the library or the board does not report is nil and no error; a GPU that waits
	// for a reset still reports what it can. ErrLost when the GPU is lost.
	Health(ctx context.Context, id UUID) (Health, error)

	// Sensors reads what changes within a second: temperature, power, clocks. It is a part of Health that needs less than ten calls:
	// read it when someone looks, not in loops that enforce something. What is not reported is nil, as in Health.
	Sensors(ctx context.Context, id UUID) (Sensors, error)

	// SetMemoryLimit sets the hard limit, in bytes, of what the processes of a cgroup may allocate on one GPU together, and
	// removes it if hard is nil. cgroup is the full path of its directory. The soft limit is always 0: a cgroup that is
	// removed with another one leaves its reservation on the cgroups above. Managed memory is not limited. ErrMissing
	// before driver R615; ErrNotSupported with MIG mode on or when the driver does not account memory by cgroup;
	// ErrNotFound when the cgroup lacks the files of the dmem controller; ErrInvalid above the memory of the GPU.
	SetMemoryLimit(ctx context.Context, id UUID, cgroup string, hard *uint64) error
	// MemoryLimit reads the limit of one cgroup. A driver may answer ErrNotFound or ErrNotSupported for a cgroup that has
	// none: only after a successful SetMemoryLimit does an error mean that there is no such limit.
	MemoryLimit(ctx context.Context, id UUID, cgroup string) (MemoryLimit, error)

	// SetMIGMode requests MIG mode on or off. A nil error does not mean that it is active: read ModeChange.
	SetMIGMode(ctx context.Context, id UUID, on bool) (ModeChange, error)
	// CreateInstance creates one GPU instance at exactly this placement, with its compute instances. If a compute
	// instance cannot be created, the GPU instance is destroyed again. ErrInsufficientResources when the placement is
	// occupied.
	CreateInstance(ctx context.Context, id UUID, want NewInstance) (Instance, error)
	// CompleteInstance creates the missing ones of these compute instances of a GPU instance, for example after an
	// interrupted creation. compute lists all that it should have; empty: one with all slices.
	CompleteInstance(ctx context.Context, id UUID, gi uint32, compute []NewCompute) (Instance, error)
	// DestroyInstance destroys the compute instances and then the GPU instance. ErrInUse when a process uses one.
	DestroyInstance(ctx context.Context, id UUID, gi uint32) error
	// SetComputeMode sets the compute mode.
	SetComputeMode(ctx context.Context, id UUID, mode ComputeMode) error
	// SetPowerLimit sets the power limit in milliwatts, which Health reports as Power.Limit: nvmlDeviceSetPowerManagementLimit,
	// for the GPU without the rest of its module. The driver forgets it when it is unloaded and when the GPU is reset. A lower limit
	// from outside of the driver still applies. ErrInvalid outside of Power.Min to Power.Max; ErrNotSupported when the board
	// has no such limit; ErrMissing when the library lacks the function.
	SetPowerLimit(ctx context.Context, id UUID, milliwatts uint64) error

	// Events calls f for every event until ctx ends or the driver is closed, and returns why. It blocks.
	Events(ctx context.Context, f func(Event)) error
	// Close releases the driver.
	Close() error
}

// NodeInfo is what the driver reports about the node.
type NodeInfo struct {
	DriverVersion  string     `json:"driver_version"`
	LibraryVersion string     `json:"library_version"`
	CUDAVersion    int        `json:"cuda_version"`      // 1000·major + 10·minor
	Library        string     `json:"library"`           // the path or name that was loaded
	Missing        []string   `json:"missing,omitempty"` // optional symbols that this library lacks
	GPUs           []Identity `json:"gpus"`
}

// Identity does not change while the driver is loaded, except for Minor, which a change of the MIG mode may change.
type Identity struct {
	UUID  UUID   `json:"uuid"`
	Index int    `json:"index"` // the driver's enumeration order; not stable across boots
	Minor int    `json:"minor"` // of /dev/nvidia<minor>
	PCI   string `json:"pci"`   // domain:bus:device.function, lowercase, "0000:07:00.0"
	Model string `json:"model"` // "NVIDIA A100-SXM4-40GB"
	// PCIDevice and PCISubsystem are the ids of the board in the driver's form: the device in the upper half, its vendor in the
	// lower, 0x20B010DE. 0 when the driver does not report them: no board has such an id.
	PCIDevice    uint32 `json:"pci_device,omitempty"`
	PCISubsystem uint32 `json:"pci_subsystem,omitempty"`

	Memory uint64 `json:"memory"` // bytes, reserved included
	// NUMANode is the NUMA node of the PCI device, -1 when the kernel does not report it.
	NUMANode int  `json:"numa_node"`
	Display  bool `json:"display,omitempty"` // a display is attached or active
	// Error says why the other fields could not be read. A lost GPU stays in the list.
	Error string `json:"error,omitempty"`
}

// Name is the GPU in messages: by its index, or by its UUID where that is not known now. The driver gives the index of a GPU that
// fell off the bus to another one.
func (id *Identity) Name() string {
	if id.Index < 0 {
		return string(id.UUID)
	}
	return "GPU " + id.Argument()
}

// Argument is the GPU as commands take it: its index, or its UUID where that is not known.
func (id *Identity) Argument() string {
	if id.Index < 0 {
		return string(id.UUID)
	}
	return strconv.Itoa(id.Index)
}

// Memory is in bytes. Total = Reserved + Used + Free. Reserved is 0 where the driver counts it as used.
type Memory struct {
	Total    uint64 `json:"total"`
	Reserved uint64 `json:"reserved"`
	Used     uint64 `json:"used"`
	Free     uint64 `json:"free"`
}

// MemoryLimit is the driver's limit of GPU memory for one cgroup on one GPU.
type MemoryLimit struct {
	Hard *uint64 `json:"hard,omitempty"` // bytes; nil: none
	Used uint64  `json:"used"`           // bytes, of the processes in the cgroup
}

// Snapshot is one consistent reading of one GPU.
type Snapshot struct {
	Identity    Identity    `json:"identity"`
	Memory      Memory      `json:"memory"`
	Utilization *int        `json:"utilization,omitempty"` // percent of the last sample period; nil when unknown (always with MIG)
	ComputeMode ComputeMode `json:"compute_mode"`
	// PowerLimit is that of Health, in milliwatts, as far as one call reads it; nil when the driver does not report it.
	PowerLimit *uint64    `json:"power_limit,omitempty"`
	MIG        MIGState   `json:"mig"`
	Instances  []Instance `json:"instances,omitempty"` // sorted by placement start
	Processes  []Process  `json:"processes,omitempty"` // sorted by pid
}

// NVLinks describes the NVLinks of one GPU. NVML reports them link by link: nvmlDeviceGetNvLinkState, and for each link
// that is up nvmlDeviceGetNvLinkRemoteDeviceType and nvmlDeviceGetNvLinkRemotePciInfo. The numbers count links of this
// GPU; no board has more than 36.
type NVLinks struct {
	// Peers are the PCI addresses, as in Identity, of the GPUs at the other end of links that are up: sorted, each once.
	// The node may not see these GPUs.
	Peers    []string `json:"peers,omitempty"`
	Switches int      `json:"switches,omitempty"` // up, to an NVSwitch
	Unknown  int      `json:"unknown,omitempty"`  // up, to another or an unknown device
	Down     int      `json:"down,omitempty"`     // not up; the driver does not report whether a bridge is connected
}

// MIGState is the MIG mode of one GPU.
type MIGState struct {
	Capable bool `json:"capable"`
	Current bool `json:"current"`
	Pending bool `json:"pending"`
	// Resetless: a mode change needs no GPU reset (NVML field 184). nil when the driver does not report it.
	Resetless *bool `json:"resetless,omitempty"`
	// Missing are the functions of MIG that the library lacks; nil when it lacks none. Without those that read the mode,
	// Capable is false although the GPU may have MIG.
	Missing *MissingMIG `json:"missing,omitempty"`
}

// Placement is a range of memory slices. The device reports the width of the grid: 4, 8 and 12 are known.
type Placement struct {
	Start uint32 `json:"start"`
	Size  uint32 `json:"size"`
}

// Overlaps reports whether both contain the same slice.
func (p Placement) Overlaps(q Placement) bool {
	return p.Start < q.Start+q.Size && q.Start < p.Start+p.Size
}

// Instance is one GPU instance with its compute instances. An instance without compute instances is an orphan.
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
	// Placement is in compute slices of the GPU instance. Its size is 0 where the driver does not report it.
	Placement Placement `json:"placement"`
	// Slices are those of its profile, where the driver does not report the placement; else 0.
	Slices uint32 `json:"slices,omitempty"`
	// UUID depends on GPU and placement only: it is the same after destroy and create. Do not use it to identify a lease.
	UUID UUID `json:"uuid"`
}

// NewInstance is the argument of CreateInstance.
type NewInstance struct {
	ProfileID uint32       `json:"profile_id"`
	Placement Placement    `json:"placement"`
	Compute   []NewCompute `json:"compute"` // empty: one compute instance with all slices
}

// NewCompute is one compute instance to create.
type NewCompute struct {
	Slices    uint32     `json:"slices"`
	Placement *Placement `json:"placement,omitempty"` // nil: the driver chooses
	// UUID is the MIG device that it must become, where the driver does not report placements: the UUID is a function of the
	// placement. Empty: any.
	UUID UUID `json:"uuid,omitempty"`
}

// Profiles are the MIG profiles of one device.
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
	Compute    []ComputeProfile `json:"compute,omitempty"`    // empty unless an instance of the profile exists
}

// ComputeProfile is one compute-instance profile.
type ComputeProfile struct {
	ID     uint32 `json:"id"`
	Slices uint32 `json:"slices"`
	Max    uint32 `json:"max"`
}

// ProcessKind is the list of the driver in which a process was found.
type ProcessKind string

// The kinds of process.
const (
	ComputeProcess  ProcessKind = "compute"
	GraphicsProcess ProcessKind = "graphics"
	MPSProcess      ProcessKind = "mps" // an MPS client
)

// Process is one process that uses a GPU.
type Process struct {
	PID    int         `json:"pid"` // in the pid namespace of the caller of the driver
	Kind   ProcessKind `json:"kind"`
	Memory *uint64     `json:"memory,omitempty"` // bytes; nil when the driver does not report it
	GI     *uint32     `json:"gi,omitempty"`
	CI     *uint32     `json:"ci,omitempty"`
}

// UtilSample is the use of the compute engine by one process. Every sample of the driver names one process, and drivers
// report one row for each named process: the time of its newest sample, and the mean over all samples newer than since,
// where a sample that names another process counts as 0 (read from nvtop#110 and go-nvml#51). So the rows of one answer
// add up to at most 100 %, a row does not say how many samples it has, and the next answer must be for the time since the
// newest row of this one.
type UtilSample struct {
	PID  int    `json:"pid"`
	Time uint64 `json:"time"` // µs, the driver's clock
	SM   int    `json:"sm"`   // percent
	Mem  int    `json:"mem"`  // percent
}

// Series are utilisation samples of one GPU (NVML_GPU_UTILIZATION_SAMPLES): how much of each period of the driver's
// sampler something ran, whichever process it was.
type Series struct {
	Samples []SeriesSample `json:"samples,omitempty"` // ascending by time
	Newest  uint64         `json:"newest"`            // the time of the last sample; the argument since when there is none
}

// SeriesSample is the utilisation of the period that ends at its time. A period in which nothing ran has no sample on
// most boards, and one of 0 % on others. Periods of 1/6 s to 1 s by product are documented (nvml.h, nvmlUtilization_t);
// the driver does not report the length.
type SeriesSample struct {
	Time    uint64 `json:"time"`    // µs, the driver's clock: since 1970, or since boot, by board and driver
	Percent int    `json:"percent"` // 0…100
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
	// Activation is the reason why current differs from pending: nil, ErrInUse (the GPU is not idle) or ErrResetRequired.
	Activation error `json:"-"`
	Minor      int   `json:"minor"` // may have changed
}

// EventKind is the kind of an event.
type EventKind string

// The events that are registered where the device supports them.
const (
	EventXID       EventKind = "xid"
	EventMIGConfig EventKind = "mig-config"
	EventECC       EventKind = "ecc"
	EventLost      EventKind = "unavailable"
	// EventWatching is none of a GPU: from now on events are reported. It comes again when some may have been lost.
	EventWatching EventKind = "watching"
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
