package cgroup

import "context"

// CgroupDriver says who makes the cgroups of containers: what Docker and Kubernetes call the cgroup driver and podman the
// cgroup manager. A runtime that is told another one than the host's cannot put a container under a slice.
type CgroupDriver string

// The drivers.
const (
	DriverNone     CgroupDriver = ""         // there is no slice to point at
	DriverSystemd  CgroupDriver = "systemd"  // the parent is the name of a unit
	DriverCgroupfs CgroupDriver = "cgroupfs" // the parent is a path in the hierarchy
)

// Abilities are what some adapters can do and others cannot. A nil field is the only way to say that it cannot be done.
type Abilities struct {
	// Hierarchy is where the adapter's cgroups are, for reading what they use.
	Hierarchy *Hierarchy
	// ScopeDevices changes which devices a running scope may open.
	ScopeDevices ScopeDevices
	// Migration keeps processes from being moved out of their scopes.
	Migration Migration
	// Units finds the units of a service manager.
	Units Units
	// PIDIndex lists the processes of all scopes now, by pid, each with its scope's id: Owner for all of them at once. A list
	// of a cgroup is one read for all its processes, where asking for each is one read for each.
	PIDIndex func() map[int]string
	// OwnScope tells from the name of a cgroup right below a slice whether the adapter made it, for a scope.
	OwnScope func(name string) bool
}

// ScopeDevices reads and sets the device rules of a scope that runs.
type ScopeDevices interface {
	// ScopeDeviceRules reads the rules back; closed is false when the scope has none.
	ScopeDeviceRules(ctx context.Context, id string) (closed bool, rules []DeviceRule, err error)
	// SetScopeDeviceRules makes these the only devices that may be opened in the scope.
	SetScopeDeviceRules(ctx context.Context, id string, rules []DeviceRule) error
}

// Migration denies users to have their processes moved out of a scope by a service manager.
type Migration interface {
	MigrationDenied() (bool, error)
	DenyMigration(ctx context.Context) error
	// AllowMigration takes the denial back. None is no error.
	AllowMigration(ctx context.Context) error
}

// Units finds the units of a service manager.
type Units interface {
	// UnitCgroup is where a unit's processes are; ErrNotFound when it does not run.
	UnitCgroup(ctx context.Context, unit string) (string, error)
}
