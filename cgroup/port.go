package cgroup

import (
	"context"
	"errors"
	"time"
)

// Errors of the port.
var (
	ErrNotFound       = errors.New("no such cgroup")
	ErrRuns           = errors.New("its programs run although its freeze is set")
	ErrManyParts      = errors.New("it has too many parts")
	ErrNotSupported   = errors.New("not supported here")
	ErrWrongCgroup    = errors.New("the process is in another cgroup")
	ErrInUse          = errors.New("it still contains processes")
	ErrNoThawWatchdog = errors.New("gpushare-thaw does not run: frozen processes would stay frozen if the daemon exited")
)

// Port is what an adapter implements. Methods are safe for concurrent use, and idempotent where their comment says so.
type Port interface {
	// Info returns the adapter and what it can enforce. It does not change during the life of the adapter.
	Info() Info
	// Abilities returns what this adapter can do and others cannot. They do not change either.
	Abilities() Abilities

	// SetSlice creates the slice or changes it to exactly s. The limits apply from its creation on. It writes nothing,
	// and returns wrote = false, when the slice as read back already equals s. Missing parents are created without limits.
	SetSlice(ctx context.Context, s Slice) (wrote bool, err error)
	// Slices reads back every slice that gpushare manages.
	Slices(ctx context.Context) ([]SliceState, error)
	// Slice reads one slice back, which is cheaper than Slices at each step of a change. ErrNotFound when there is none.
	Slice(ctx context.Context, name SliceName) (SliceState, error)
	// RemoveSlice removes an empty slice. A missing slice is no error. ErrInUse names the processes in it.
	RemoveSlice(ctx context.Context, name SliceName) error

	// StartScope creates a scope in its slice and moves the process into it. All rules of the scope are active before it
	// returns. The process must be alive; it is identified by pid and start time.
	StartScope(ctx context.Context, s Scope) (ScopeState, error)
	// Recover finds a scope that a previous run of the daemon started. It writes nothing. ErrNotFound when none of its
	// processes runs any more; any other error means that the state is unknown.
	Recover(ctx context.Context, s Scope) (ScopeState, error)
	// Scopes reads back every managed scope that contains a process.
	Scopes(ctx context.Context) ([]ScopeState, error)
	// Members lists the processes in the scope now. ErrNotFound when the scope was removed.
	Members(ctx context.Context, id string) ([]Process, error)
	// WaitEmpty blocks until the scope is empty or removed. ErrOutOfMemory when the kernel is known to have killed it.
	// Where memory is accounted, the kernel kills all processes of a scope together (memory.oom.group).
	WaitEmpty(ctx context.Context, id string) error
	// KillScope kills every process in the scope, also frozen ones, and returns when it is empty. A missing scope is no
	// error.
	KillScope(ctx context.Context, id string) error

	// Leaf is the cgroup that contains the scope's processes and that is frozen. ErrNotSupported without cgroups.
	Leaf(id string) (cg string, err error)
	// ScopeOf returns the scope of the process; ok is false when it is in none. It is fast enough for many pids.
	ScopeOf(pid int) (id string, ok bool)

	ScopeFreezer
}

// ScopeFreezer stops and continues the processes of a scope. ErrNotSupported where there is no freezer.
type ScopeFreezer interface {
	// Freeze returns when all processes of the scope are frozen. When ctx ends first, some may be frozen: thaw them.
	Freeze(ctx context.Context, id string) error
	// Thaw is idempotent.
	Thaw(ctx context.Context, id string) error
	// Frozen reads the state back.
	Frozen(id string) (bool, error)
}

// Info is what an adapter is and what it can enforce.
type Info struct {
	Adapter string // "systemd", "cgroupfs" or "processes"
	Detail  string // "systemd 257", the subtree's path, or the reason for the fallback
	// Slices: slices are cgroups. Otherwise they are only names, and nothing is limited.
	Slices bool
	// Driver is the cgroup driver of container runtimes that fits the slices.
	Driver  CgroupDriver
	Freeze  bool
	Devices bool // device rules are enforced
	// NoDevices is the reason why they are not; empty when they are, or when the adapter has no device rules.
	NoDevices string
	// Limits names the enforced limits: "cpu", "memory", "tasks", "io", "cpuset". Others are accepted, recorded and
	// reported as not enforced.
	Limits []string
}

// SliceName names a slice: both empty is the root of all managed slices, Grant empty is the tenant's slice.
type SliceName struct {
	Tenant string
	Grant  string
}

// Limits of a slice. nil means no limit.
type Limits struct {
	CPUQuota   *float64 // percent of one CPU: 800 is eight CPUs
	CPUWeight  *uint64  // 1…10000; the kernel's default is 100
	CPUs       string   // "0-7,16", empty for all
	MemoryMax  *uint64  // bytes
	MemoryHigh *uint64  // bytes
	SwapMax    *uint64  // bytes
	TasksMax   *uint64  // at least 1
	IOWeight   *uint64  // 1…10000
}

// DeviceRule allows one device node.
type DeviceRule struct {
	Type   byte // 'c' or 'b'
	Major  uint32
	Minor  uint32
	Access string // of "r", "w", "m"
	Name   string // for people: "/dev/nvidia0"
}

// Slice is a desired slice. With Closed, its processes may open only Devices and the standard pseudo devices.
type Slice struct {
	Name    SliceName
	Limits  Limits
	Closed  bool
	Devices []DeviceRule
}

// SliceState is a slice as read back.
type SliceState struct {
	Name    SliceName
	Path    string // relative to the cgroup root
	Limits  Limits // as the kernel or the service manager reports them
	Closed  bool
	Devices []DeviceRule
}

// Scope is one lease's own cgroup.
type Scope struct {
	ID          string // the lease's id: [a-z0-9-]{1,40}
	Slice       SliceName
	Process     Process
	Description string
	Closed      bool
	Devices     []DeviceRule
	StopTimeout time.Duration // from SIGTERM to SIGKILL when the service manager stops it; 10 s when zero
	// MemoryNodes are the NUMA nodes that its memory comes from, as "0-1"; empty for all. It belongs to the scope and
	// not to the slice, because a change would move the memory of running processes. It is enforced where Info.Limits
	// has "cpuset".
	MemoryNodes string
	// Cgroup is the cgroup in which the processes remain, relative to the cgroup root. Only Attachments uses it.
	Cgroup string
	// Kept: the scope does not end with its last process, and not with its cgroups: they may be removed and made again. Only Attachments
	// uses it.
	Kept bool
	// Further are more cgroups of a scope that is kept.
	Further []string
}

// ScopeState is a scope as read back.
type ScopeState struct {
	ID   string
	Path string // of the cgroup that contains the processes, relative to the cgroup root; empty without cgroups
	Unit string // of systemd; empty for other adapters
	// MemoryNodes is Scope.MemoryNodes as the kernel reports it; empty for all.
	MemoryNodes string
}

// Process identifies one process. The kernel reuses pids, but not a pid with the same start time.
type Process struct {
	PID   int
	Start uint64 // start time in clock ticks since boot, field 22 of /proc/PID/stat
}
