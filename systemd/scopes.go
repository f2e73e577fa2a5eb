package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// stopTimeout is the time between SIGTERM and SIGKILL when systemd stops a scope. The default of systemd is 90 s, and a
// frozen scope takes all of it.
const stopTimeout = 10 * time.Second

// maxMoveRounds bounds how often the scope's root is emptied into the inner cgroup: each round moves what forked meanwhile.
const maxMoveRounds = 100

// StartScope starts a delegated scope with the process, creates the inner cgroup and moves all processes into it. The
// process must wait until StartScope returns.
func (a *Adapter) StartScope(ctx context.Context, s cgroup.Scope) (cgroup.ScopeState, error) {
	if err := checkScope(s); err != nil {
		return cgroup.ScopeState{}, err
	}
	if !procfs.Alive(s.Process.PID, s.Process.Start) {
		return cgroup.ScopeState{}, fmt.Errorf("cannot start scope %s: process %d: %w", s.ID, s.Process.PID, procfs.ErrNoProcess)
	}
	unit := scopeUnit(a.prefix, s.ID)
	err := a.startScope(ctx, unit, s)
	if is(err, "UnitExists") {
		// It is a scope of an earlier call, or a failed one that remains because the kernel reported its end late.
		if st, err := a.Recover(ctx, s); err == nil {
			if ps, err := a.Members(ctx, s.ID); err == nil && slices.Contains(ps, s.Process) {
				return st, nil
			}
			return cgroup.ScopeState{}, fmt.Errorf("cannot start scope %s: it exists already: %w", s.ID, cgroup.ErrInUse)
		}
		if err := a.reset(ctx, unit); err != nil {
			return cgroup.ScopeState{}, err
		}
		err = a.startScope(ctx, unit, s)
	}
	if err != nil && !procfs.Alive(s.Process.PID, s.Process.Start) {
		err = fmt.Errorf("%w: %w", err, procfs.ErrNoProcess)
	}
	if errors.Is(err, procfs.ErrNoProcess) {
		err = errors.Join(err, a.undoStart(ctx, unit, s.Process))
	}
	if err != nil {
		return cgroup.ScopeState{}, err
	}
	scope, err := a.scopeCgroup(ctx, unit)
	if err == nil {
		err = a.moveInside(ctx, scope, s.Process)
	}
	if errors.Is(err, procfs.ErrNoProcess) {
		err = errors.Join(err, a.undoStart(ctx, unit, s.Process))
	}
	if err != nil {
		return cgroup.ScopeState{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	a.register(s.ID, scope)
	return cgroup.ScopeState{ID: s.ID, Path: path.Join(scope, inner), Unit: unit, MemoryNodes: a.h.MemoryNodes(scope)}, nil
}

// undoStart empties the scope of a process that exited during its start. The service manager moves a pid, which another
// process may have got meanwhile: that one goes back to where it came from. The others are descendants of the process.
func (a *Adapter) undoStart(ctx context.Context, unit string, p cgroup.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	scope, err := a.scopeCgroup(ctx, unit)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = a.h.TakeOut(p, scope)
	}
	if err != nil {
		return fmt.Errorf("cannot empty %s: %w", unit, err)
	}
	return a.h.Kill(ctx, scope)
}

// descriptorsSince is the oldest systemd that is known to accept processes by descriptor (PIDFDs). 252 does not. Versions
// between get pids, which is correct unless a pid is reused in between.
const descriptorsSince = 257

// startScope starts the unit with the process.
func (a *Adapter) startScope(ctx context.Context, unit string, s cgroup.Scope) error {
	pidfd, err := procfs.OpenPidfd(s.Process.PID, s.Process.Start)
	if err != nil {
		return fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	defer pidfd.Close()
	start := func(processes sd.Property) error {
		props := append(a.scopeProperties(s), processes)
		return a.bus.job(ctx, "start scope "+s.ID, func(ctx context.Context, c *sd.Conn, ended chan<- string) (int, error) {
			return c.StartTransientUnitContext(ctx, unit, "fail", props, ended)
		})
	}
	if !a.pidOnly.Load() {
		err := pidfd.Pass(func(fd int) error { return start(prop("PIDFDs", []dbus.UnixFD{dbus.UnixFD(fd)})) })
		if !unknownProperty(err) {
			return err
		}
		a.pidOnly.Store(true)
	}
	return start(prop("PIDs", []uint32{uint32(s.Process.PID)}))
}

// scopeProperties are the properties that the scope starts with. It never has User=: systemd would delegate the cgroup to
// that user, who could then leave the inner one.
func (a *Adapter) scopeProperties(s cgroup.Scope) []sd.Property {
	description := s.Description
	if description == "" {
		description = "lease " + s.ID
	}
	timeout := s.StopTimeout
	if timeout == 0 {
		timeout = stopTimeout
	}
	props := []sd.Property{
		prop("Description", description),
		prop("Slice", sliceUnit(a.prefix, s.Slice)),
		prop("Delegate", true),
		prop("CollectMode", "inactive-or-failed"),
		prop("TimeoutStopUSec", uint64(timeout.Microseconds())),
	}
	if a.oomPolicy {
		props = append(props, prop("OOMPolicy", "kill"))
	}
	if mask, err := cpuMask(s.MemoryNodes); err == nil && len(mask) > 0 && slices.Contains(a.info.Limits, "cpuset") {
		props = append(props, prop("AllowedMemoryNodes", mask)) // since 244, like AllowedCPUs
	}
	if s.Closed {
		props = append(props, prop("DevicePolicy", "closed"))
		if allow := devicesFor(s.Devices); len(allow) > 0 {
			props = append(props, prop("DeviceAllow", allow))
		}
	}
	return props
}

// moveInside moves the process, and whatever else is in the scope's root, into the inner cgroup.
func (a *Adapter) moveInside(ctx context.Context, scope string, p cgroup.Process) error {
	run := path.Join(scope, inner)
	if err := makeInner(a.h.Dir(run)); err != nil {
		return fmt.Errorf("cannot create cgroup %s: %w", run, err)
	}
	if err := a.h.Place(p, run); err != nil {
		return err
	}
	for range maxMoveRounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		pids, err := a.h.Direct(scope)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return a.finishInner(run, p)
		}
		for _, pid := range pids {
			start, err := procfs.Start(pid)
			if errors.Is(err, procfs.ErrNoProcess) {
				continue
			}
			if err != nil {
				return err
			}
			if err := a.h.Place(cgroup.Process{PID: pid, Start: start}, run); err != nil && !errors.Is(err, procfs.ErrNoProcess) {
				return err
			}
		}
	}
	return fmt.Errorf("cannot empty cgroup %s: its processes fork faster than they are moved: %w", scope, cgroup.ErrInUse)
}

// finishInner sets memory.oom.group in the inner cgroup, whatever the unit's policy is: no reload and no change of the
// unit's properties resets it. The scope's root must be empty for that.
func (a *Adapter) finishInner(run string, p cgroup.Process) error {
	if err := a.h.SetOOMGroup(run); err != nil {
		return err
	}
	return a.h.Verify(p, run)
}

// Recover registers a scope that an earlier run of the daemon started, also one that the service manager stops.
func (a *Adapter) Recover(ctx context.Context, s cgroup.Scope) (cgroup.ScopeState, error) {
	if err := checkScope(s); err != nil {
		return cgroup.ScopeState{}, errors.Join(err, cgroup.ErrNotFound) // No scope has such a name.
	}
	unit := scopeUnit(a.prefix, s.ID)
	scope, err := a.controlGroup(ctx, unit, "Scope")
	if err == nil && scope == "" {
		// A detached lease is a service.
		var st cgroup.ScopeState
		if st, _, err = a.program(ctx, s.ID); err == nil {
			unit, scope = st.Unit, path.Dir(st.Path)
		}
	}
	if err != nil {
		return cgroup.ScopeState{}, fmt.Errorf("cannot recover scope %s: %w", s.ID, err)
	}
	if busy, err := a.h.Populated(scope); err != nil || !busy {
		return cgroup.ScopeState{}, fmt.Errorf("cannot recover scope %s: %w", s.ID, errors.Join(err, cgroup.ErrNotFound))
	}
	a.register(s.ID, scope)
	return cgroup.ScopeState{ID: s.ID, Path: path.Join(scope, inner), Unit: unit, MemoryNodes: a.h.MemoryNodes(scope)}, nil
}

// register attributes the processes in a unit's cgroup to a lease, and watches how they end.
func (a *Adapter) register(id, cg string) {
	a.index.Register(id, cg)
	// Where it cannot be watched, its end is reported without a reason.
	_ = a.oomWatcher.Watch(a.h, id, path.Join(cg, inner), path.Dir(cg))
}

// Scopes reads back every scope that still has a process, also one that the service manager stops: its process may ignore SIGTERM,
// and have its GPU until it is killed.
func (a *Adapter) Scopes(ctx context.Context) ([]cgroup.ScopeState, error) { return a.scopeUnits(ctx) }

func (a *Adapter) scopeUnits(ctx context.Context) ([]cgroup.ScopeState, error) {
	units, err := a.list(ctx, escapeGlob(escape(a.prefix))+"-*.scope", escapeGlob(escape(a.prefix))+"-lease-*.service")
	if err != nil {
		return nil, err
	}
	var states []cgroup.ScopeState
	for _, u := range units {
		kind := "Scope"
		id, ok := scopeOf(a.prefix, u.Name)
		if !ok {
			kind = "Service"
			id, ok = programOf(a.prefix, u.Name)
		}
		if !ok {
			continue
		}
		cg, err := a.controlGroup(ctx, u.Name, kind)
		if err != nil {
			return nil, err
		}
		if cg == "" || !cgroup.Below(cg, "/"+sliceUnit(a.prefix, cgroup.SliceName{})) {
			continue // It has ended; or it is of another program: Slurm's scope begins with the name of the host.
		}
		busy, err := a.h.Populated(cg)
		if err != nil && !errors.Is(err, cgroup.ErrNotFound) {
			return nil, err
		}
		if busy {
			states = append(states, cgroup.ScopeState{ID: id, Path: path.Join(cg, inner), Unit: u.Name})
		}
	}
	slices.SortFunc(states, func(x, y cgroup.ScopeState) int { return strings.Compare(x.ID, y.ID) })
	return states, nil
}

// scopeCgroup returns the scope's cgroup; ErrNotFound when it does not run.
func (a *Adapter) scopeCgroup(ctx context.Context, unit string) (string, error) {
	return a.unitCgroup(ctx, unit, "Scope")
}

// unitCgroup returns the cgroup of a unit's processes. A unit that starts or reloads counts as running, a unit that stops
// does not. ErrNotFound: the unit does not run.
func (a *Adapter) unitCgroup(ctx context.Context, unit, kind string) (string, error) {
	active, err := a.state(ctx, unit)
	if is(err, "NoSuchUnit") || err == nil && !slices.Contains([]string{"active", "activating", "reloading", "refreshing"}, active) {
		return "", fmt.Errorf("unit %s: %w", unit, cgroup.ErrNotFound)
	}
	if err != nil {
		return "", err
	}
	cg, err := a.controlGroup(ctx, unit, kind)
	if err == nil && cg == "" {
		err = fmt.Errorf("unit %s: %w", unit, cgroup.ErrNotFound)
	}
	return cg, err
}

// controlGroup queries the path of a unit's cgroup, because systemd alone maps unit names to paths. It is empty for a unit
// that does not run.
func (a *Adapter) controlGroup(ctx context.Context, unit, kind string) (cg string, err error) {
	err = a.bus.do(ctx, func(ctx context.Context, l *link) error {
		p, err := l.units.GetUnitTypePropertyContext(ctx, unit, kind, "ControlGroup")
		if is(err, "NoSuchUnit") {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read unit %s: %w", unit, err)
		}
		cg, _ = p.Value.Value().(string)
		return nil
	})
	return cg, err
}

// reset makes systemd remove a failed unit.
func (a *Adapter) reset(ctx context.Context, unit string) error {
	err := a.bus.do(ctx, func(ctx context.Context, l *link) error { return l.units.ResetFailedUnitContext(ctx, unit) })
	if err != nil && !is(err, "NoSuchUnit") {
		return fmt.Errorf("cannot reset unit %s: %w", unit, err)
	}
	return nil
}

func checkScope(s cgroup.Scope) error {
	// A scope's id becomes part of a unit name as a slice's name does: the same check applies.
	if err := (cgroup.SliceName{Tenant: s.ID}).Check(); err != nil || s.ID == "" {
		return fmt.Errorf("cannot name a scope %q: use letters, digits, '.', '_' and '-'", s.ID)
	}
	return s.Slice.Check()
}

// unitOf returns the unit of a lease's processes: a scope, or the service of a detached lease.
func (a *Adapter) unitOf(id string) (unit, kind string) {
	if cg, ok := a.index.Path(id); ok && path.Base(cg) == programUnit(a.prefix, id) {
		return path.Base(cg), "Service"
	}
	return scopeUnit(a.prefix, id), "Scope"
}

// ScopeDeviceRules reads back the device rules of a scope that systemd was given.
func (a *Adapter) ScopeDeviceRules(ctx context.Context, id string) (closed bool, rules []cgroup.DeviceRule, err error) {
	unit, kind := a.unitOf(id)
	props, err := a.typed(ctx, unit, kind)
	if is(err, "NoSuchUnit") {
		return false, nil, fmt.Errorf("scope %s: %w", id, cgroup.ErrNotFound)
	}
	if err != nil {
		return false, nil, fmt.Errorf("cannot read the device rules of scope %s: %w", id, err)
	}
	closed, rules = devicesOf(props)
	return closed, rules, nil
}

// SetScopeDeviceRules makes these the only devices that a scope that runs may open. A scope does not outlive the boot, and
// neither do its properties.
func (a *Adapter) SetScopeDeviceRules(ctx context.Context, id string, rules []cgroup.DeviceRule) error {
	unit, _ := a.unitOf(id)
	props := append([]sd.Property{prop("DevicePolicy", "closed")}, replaceDevices(devicesFor(rules))...)
	err := a.bus.do(ctx, func(ctx context.Context, l *link) error {
		return l.units.SetUnitPropertiesContext(ctx, unit, bool(runtime), props...)
	})
	if err != nil {
		return fmt.Errorf("cannot set the device rules of scope %s: %w", id, err)
	}
	return nil
}
