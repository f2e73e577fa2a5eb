package cgroup

import "context"

// CgroupDriver says which program creates the cgroups of containers. Docker and Kubernetes call it the cgroup driver,
// podman the cgroup manager. A runtime with another driver than the host's cannot put a container into a slice.
type CgroupDriver string

// The drivers.
const (
	DriverNone     CgroupDriver = ""         // there are no slices
	DriverSystemd  CgroupDriver = "systemd"  // the parent is the name of a unit
	DriverCgroupfs CgroupDriver = "cgroupfs" // the parent is a path in the hierarchy
)

// Abilities are what some adapters can do and others cannot. A nil field means that the adapter cannot do it.
type Abilities struct {
	// Hierarchy contains the adapter's cgroups, for reading their use.
	Hierarchy *Hierarchy
	// ScopeDevices changes which devices a running scope may open.
	ScopeDevices ScopeDevices
	// Migration prevents that processes are moved out of their scopes.
	Migration Migration
	// Units finds the units of a service manager.
	Units Units
	// PIDIndex maps the pids of all scopes now to the ids of their scopes. It needs one read for each cgroup, and
	// ScopeOf one read for each process.
	PIDIndex func() map[int]string
	// OwnScope reports, from the name of a child cgroup of a slice, whether the adapter created it for a scope.
	OwnScope func(name string) bool
}

// ScopeDevices reads and sets the device rules of a running scope.
type ScopeDevices interface {
	// ScopeDeviceRules reads the rules back; closed is false when the scope has none.
	ScopeDeviceRules(ctx context.Context, id string) (closed bool, rules []DeviceRule, err error)
	// SetScopeDeviceRules makes these the only devices that may be opened in the scope.
	SetScopeDeviceRules(ctx context.Context, id string, rules []DeviceRule) error
}

// Migration controls whether users may ask a service manager to move their processes out of a scope.
type Migration interface {
	MigrationDenied() (bool, error)
	DenyMigration(ctx context.Context) error
	// AllowMigration removes the denial. A missing denial is no error.
	AllowMigration(ctx context.Context) error
}

// Units finds the units of a service manager.
type Units interface {
	// UnitCgroup is the cgroup of a unit; ErrNotFound when it does not run.
	UnitCgroup(ctx context.Context, unit string) (string, error)
}
