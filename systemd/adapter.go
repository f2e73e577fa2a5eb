package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/cgroup"
)

// Options of an Adapter; the zero value is the usual host.
type Options struct {
	Address string       // of the bus; the system bus when empty
	Prefix  string       // of the units' names; "gpushare" when empty
	Mount   string       // of the cgroup v2 hierarchy; found when empty
	Policy  string       // the directory of the bus policies; usualPolicyDir when empty
	Log     *slog.Logger // nil: nothing is logged
	// Journalctl reads the journal; found in the PATH when empty.
	Journalctl string

	// DevicePrograms returns how many device programs the cgroup of a directory has; cgroup.ErrNotFound when there is no such
	// cgroup. Nil: the kernel is not queried, and the device rules are those that systemd reports.
	DevicePrograms func(dir string) (programs int, err error)

	// OnReload is called after the service manager has reloaded its configuration, and after a lost connection to it was
	// made again: what is in force must then be verified. It must not block and not call the adapter.
	OnReload func()
	// OnLogins is called after a login or logout, and OnUnit after a job of a unit has ended (any unit when the name is
	// empty): see Logins and UnitCgroup. Both are also called after a lost connection. They must not block either.
	OnLogins func()
	OnUnit   func(name string)
}

// Adapter implements package cgroup's port on hosts with systemd, and starts services. It is safe for concurrent use.
// Close it.
type Adapter struct {
	// It freezes the inner cgroup by the kernel's freezer, not by FreezeUnit: on 257 an administrator cannot stop a unit that FreezeUnit
	// froze.
	cgroup.InnerFreezer

	bus        *supervisor
	prefix     string
	policyDir  string
	h          cgroup.Hierarchy
	index      cgroup.ScopeIndex
	oomWatcher cgroup.OOMWatcher
	info       cgroup.Info

	journalctl string
	followers  followers

	pidOnly   atomic.Bool // this systemd does not take processes by descriptor
	oomPolicy bool        // its scopes have OOMPolicy

	roots          [3]string // of drop-ins
	devicePrograms func(dir string) (programs int, err error)

	// mu serialises creating and removing slices; systemd itself orders the rest.
	mu sync.Mutex

	// configsMu guards configs. It is taken last.
	configsMu sync.Mutex
	configs   map[string]sliceConfig // by unit
}

var _ cgroup.Port = (*Adapter)(nil)

// inner is the cgroup in a delegated scope that contains its processes and is frozen: systemd neither sees nor undoes that.
const inner = "run"

// Open connects to the service manager, queries its version and registers the scopes that run. It returns ErrUnavailable
// when the service manager cannot be reached, cgroup.ErrNotSupported when it is too old or the host has no cgroup v2
// hierarchy.
func Open(ctx context.Context, opt Options) (*Adapter, error) {
	if opt.Prefix == "" {
		opt.Prefix = "gpushare"
	}
	if opt.Policy == "" {
		opt.Policy = usualPolicyDir
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	call := listeners{reloaded: opt.OnReload, logins: opt.OnLogins, unit: opt.OnUnit}
	if call.reloaded == nil {
		call.reloaded = func() {}
	}
	if call.logins == nil {
		call.logins = func() {}
	}
	if call.unit == nil {
		call.unit = func(string) {}
	}
	h := cgroup.Hierarchy{Mount: opt.Mount}
	if h.Mount == "" {
		var err error
		if h, err = cgroup.FindHierarchy(); err != nil {
			return nil, err
		}
	}
	controllers, err := h.Controllers()
	if err != nil {
		return nil, err
	}
	bus, err := supervise(ctx, opt.Address, opt.Log, call)
	if err != nil {
		return nil, err
	}
	a := &Adapter{
		policyDir:      opt.Policy,
		bus:            bus,
		prefix:         opt.Prefix,
		h:              h,
		roots:          dropinRoots(),
		devicePrograms: opt.DevicePrograms,
		configs:        map[string]sliceConfig{},
		journalctl:     cmp.Or(opt.Journalctl, "journalctl"),
	}
	a.InnerFreezer = cgroup.NewInnerFreezer(h.Mount, a.Leaf)
	if err := a.initialize(ctx, controllers); err != nil {
		bus.close()
		return nil, err
	}
	return a, nil
}

// Close ends the connection. Units, limits and scopes are kept.
func (a *Adapter) Close() {
	a.bus.close()
	a.oomWatcher.Close()
}

func (a *Adapter) initialize(ctx context.Context, controllers []string) error {
	version, text, err := a.version(ctx)
	if err != nil {
		return err
	}
	if version < minVersion {
		return fmt.Errorf("cannot use systemd %s: version %d or newer is needed: %w", text, minVersion, cgroup.ErrNotSupported)
	}
	a.info = cgroup.Info{
		Adapter: "systemd", Detail: "systemd " + text, Slices: true, Driver: cgroup.DriverSystemd, Freeze: true, Devices: true,
		Limits: limitsSince(version, controllers),
	}
	a.pidOnly.Store(version < descriptorsSince)
	a.oomPolicy = version >= oomPolicySince
	scopes, err := a.scopeUnits(ctx)
	if err != nil {
		return err
	}
	for _, s := range scopes {
		a.index.Register(s.ID, path.Dir(s.Path))
	}
	return nil
}

func (a *Adapter) version(ctx context.Context) (number int, text string, err error) {
	err = a.bus.do(ctx, func(ctx context.Context, l *link) error {
		v, err := managerProperty(ctx, l, "Version")
		if err != nil {
			return fmt.Errorf("cannot read the service manager's version: %w", err)
		}
		text, _ = v.(string)
		return nil
	})
	return parseVersion(text), text, err
}

func managerProperty(ctx context.Context, l *link, name string) (any, error) {
	var v any
	obj := l.raw.Object(busName, managerPath)
	err := obj.CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, managerIface, name).Store(&v)
	return v, err
}

// Info describes the adapter.
func (a *Adapter) Info() cgroup.Info { return a.info }

// Abilities are those of a host with systemd.
func (a *Adapter) Abilities() cgroup.Abilities {
	return cgroup.Abilities{
		Hierarchy: new(a.h), ScopeDevices: a, Migration: a, Units: a, PIDIndex: a.PIDIndex,
		OwnScope: func(name string) bool { return ownUnit(a.prefix, name) },
	}
}

// Hierarchy returns the hierarchy of systemd's cgroups, for reading statistics.
func (a *Adapter) Hierarchy() cgroup.Hierarchy { return a.h }

// Members lists the processes that are in the scope now, without those that another service manager moved out:
// see cgroup.ErrWrongCgroup.
func (a *Adapter) Members(_ context.Context, id string) ([]cgroup.Process, error) {
	scope, err := a.scope(id)
	if err != nil {
		return nil, err
	}
	return a.h.Processes(scope)
}

// WaitEmpty blocks until the scope has no process or no longer exists: systemd removes it about 3 ms after its last process
// ends.
func (a *Adapter) WaitEmpty(ctx context.Context, id string) error {
	scope, err := a.scope(id)
	if err != nil {
		return nil //nolint:nilerr // no scope: the wait is over
	}
	if err := a.h.WaitEmpty(ctx, scope); err != nil {
		return fmt.Errorf("cannot wait for the end of scope %s: %w", id, err)
	}
	killed := a.oomWatcher.Killed(a.h, id, path.Join(scope, inner), path.Dir(scope))
	a.forgetScope(id)
	if killed {
		return cgroup.ErrOutOfMemory
	}
	return nil
}

// KillScope kills every process in the scope; systemd then removes it.
func (a *Adapter) KillScope(ctx context.Context, id string) error {
	scope, err := a.scope(id)
	if err != nil {
		return nil //nolint:nilerr // no such scope is no error
	}
	if err := a.h.Kill(ctx, scope); err != nil {
		return fmt.Errorf("cannot kill scope %s: %w", id, err)
	}
	a.forgetScope(id)
	a.oomWatcher.Forget(id)
	return nil
}

// forgetScope drops what is known about a scope that was removed.
func (a *Adapter) forgetScope(id string) {
	a.ForgetFiles(id)
	a.index.Forget(id)
}

// ScopeOf returns the scope of a process.
func (a *Adapter) ScopeOf(pid int) (string, bool) { return a.index.ScopeOf(pid) }

// PIDIndex lists the processes of all scopes.
func (a *Adapter) PIDIndex() map[int]string { return a.index.PIDIndex(a.h) }

// Leaf is the scope's inner cgroup.
func (a *Adapter) Leaf(id string) (string, error) {
	scope, err := a.scope(id)
	if err != nil {
		return "", err
	}
	return path.Join(scope, inner), nil
}

func (a *Adapter) scope(id string) (string, error) {
	cg, ok := a.index.Path(id)
	if !ok {
		return "", fmt.Errorf("scope %s: %w", id, cgroup.ErrNotFound)
	}
	return cg, nil
}

// typed reads all properties of a unit's type ("Slice", "Scope", "Service").
func (a *Adapter) typed(ctx context.Context, unit, kind string) (props map[string]any, err error) {
	err = a.bus.do(ctx, func(ctx context.Context, l *link) error {
		var err error
		if props, err = l.units.GetUnitTypePropertiesContext(ctx, unit, kind); err != nil {
			return fmt.Errorf("cannot read unit %s: %w", unit, err)
		}
		return nil
	})
	return props, err
}

// state reads whether a unit is "active", "inactive", "failed", or between.
func (a *Adapter) state(ctx context.Context, unit string) (active string, err error) {
	err = a.bus.do(ctx, func(ctx context.Context, l *link) error {
		p, err := l.units.GetUnitPropertyContext(ctx, unit, "ActiveState")
		if err != nil {
			return fmt.Errorf("cannot read unit %s: %w", unit, err)
		}
		active, _ = p.Value.Value().(string)
		return nil
	})
	return active, err
}

// list lists the loaded units whose name matches.
func (a *Adapter) list(ctx context.Context, patterns ...string) (units []sd.UnitStatus, err error) {
	err = a.bus.do(ctx, func(ctx context.Context, l *link) error {
		if units, err = l.units.ListUnitsByPatternsContext(ctx, []string{}, patterns); err != nil {
			return fmt.Errorf("cannot list units: %w", err)
		}
		return nil
	})
	return units, err
}

// stop stops a unit. A unit that does not exist is no error.
func (a *Adapter) stop(ctx context.Context, unit string) error {
	err := a.bus.job(ctx, "stop "+unit, func(ctx context.Context, c *sd.Conn, ended chan<- string) (int, error) {
		return c.StopUnitContext(ctx, unit, "replace", ended)
	})
	if is(err, "NoSuchUnit") {
		return nil
	}
	return err
}

func makeInner(dir string) error {
	if err := unix.Mkdir(dir, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
