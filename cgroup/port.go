package cgroup

import (
	"context"
	"errors"
	"time"
)

// Errors of the port.
var (
	ErrNotFound     = errors.New("no such cgroup")
	ErrNotSupported = errors.New("not supported here")
	ErrWrongCgroup  = errors.New("the process is not where it was put")
	ErrInUse        = errors.New("it still holds processes")
	ErrNoThawer     = errors.New("gpushare-thaw does not run, so nobody would thaw it if this process died")
)

// Port is what an adapter does. Methods are safe for concurrent use and idempotent where they say so.
type Port interface {
	// Info says which adapter this is and what it can enforce. It does not change while the adapter lives.
	Info() Info
	// Abilities are what this adapter can do and others cannot. They do not change either.
	Abilities() Abilities

	// SetSlice makes the slice or changes it to exactly this; limits hold from its birth. It writes nothing, and says
	// so, when the slice is already like this as read back. Parents are made as needed, without limits.
	SetSlice(ctx context.Context, s Slice) (wrote bool, err error)
	// Slices reads back every slice of ours.
	Slices(ctx context.Context) ([]SliceState, error)
	// Slice reads one slice back: one of many is asked for at each step of a change. ErrNotFound when there is none.
	Slice(ctx context.Context, name SliceName) (SliceState, error)
	// RemoveSlice removes an empty slice. No such slice is no error; ErrInUse names what is in it.
	RemoveSlice(ctx context.Context, name SliceName) error

	// StartScope makes a scope under its slice and moves the process into it, with all the scope's own rules in force
	// before it returns. The process must be alive; it is identified by pid and start time.
	StartScope(ctx context.Context, s Scope) (ScopeState, error)
	// Recover takes up again a scope that was started before this adapter was made, by an earlier life of the daemon. It
	// writes nothing. ErrNotFound when nothing of it runs any more; any other error means that this is not known.
	Recover(ctx context.Context, s Scope) (ScopeState, error)
	// Scopes reads back every scope of ours that still holds a process.
	Scopes(ctx context.Context) ([]ScopeState, error)
	// Members lists the processes in the scope now. ErrNotFound when the scope is gone.
	Members(ctx context.Context, id string) ([]Process, error)
	// WaitEmpty blocks until the scope holds no process or is gone. ErrOutOfMemory when it is known that the kernel ended it
	// for want of memory, which ends a scope as a whole wherever memory is counted.
	WaitEmpty(ctx context.Context, id string) error
	// KillScope kills every process in the scope, frozen ones too, and returns when it is empty. No such scope is no error.
	KillScope(ctx context.Context, id string) error

	// Leaf is the cgroup that holds the scope's processes and is frozen. ErrNotSupported without cgroups.
	Leaf(id string) (cg string, err error)
	// ScopeOf tells which scope holds the process: fast, for many pids. ok is false for a process of nobody's.
	ScopeOf(pid int) (id string, ok bool)

	ScopeFreezer
}

// ScopeFreezer stops and continues a scope's processes. ErrNotSupported where there is no freezer.
type ScopeFreezer interface {
	// Freeze returns when all processes of the scope are frozen, or ctx is over (then some may be: thaw).
	Freeze(ctx context.Context, id string) error
	// Thaw is idempotent.
	Thaw(ctx context.Context, id string) error
	// Frozen reads the state back.
	Frozen(id string) (bool, error)
}

// Info says what an adapter is and can do.
type Info struct {
	Adapter string // "systemd", "cgroupfs" or "processes"
	Detail  string // "systemd 257", the subtree's path, or why nothing more was possible
	// Slices tells whether slices are cgroups. Where they are not, they are names only, and nothing is limited.
	Slices bool
	// Driver is how a container runtime is pointed at a slice.
	Driver  CgroupDriver
	Freeze  bool
	Devices bool // device rules are enforced
	// DevicesReason is why they are not; empty where they are or where the adapter has none.
	NoDevices string
	// Limits names the limits that act here ("cpu", "memory", "tasks", "io", "cpuset"); those absent are accepted,
	// remembered and reported as not enforced.
	Limits []string
}

// SliceName names a slice: both empty is the root of all of ours, Grant empty is the tenant's.
type SliceName struct {
	Tenant string
	Grant  string
}

// Limits of a slice. nil means that nobody asked: no limit.
type Limits struct {
	CPUQuota   *float64 // percent of one CPU: 800 is eight CPUs
	CPUWeight  *uint64  // 1…10000, 100 is usual
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

// Slice is what a slice should be. With Closed, only Devices and the standard pseudo devices may be opened inside.
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
	// MemoryNodes are the NUMA nodes that its memory comes from, as "0-1"; empty for all. It is a scope's and not a slice's:
	// to change it for who runs already would move his memory. It acts where Info.Limits has "cpuset".
	MemoryNodes string
	// Cgroup is where the processes are and stay, relative to the cgroup root: for Visitors, which looks at nothing else.
	Cgroup string
}

// ScopeState is a scope as read back.
type ScopeState struct {
	ID   string
	Path string // of the cgroup that holds the processes, relative to the cgroup root; empty without cgroups
	Unit string // of systemd, empty elsewhere
	// MemoryNodes is what the kernel says of Scope.MemoryNodes; empty for all.
	MemoryNodes string
}

// Process is one process for as long as it lives: pids come back, the pair does not.
type Process struct {
	PID   int
	Start uint64 // start time in clock ticks since boot, field 22 of /proc/PID/stat
}
