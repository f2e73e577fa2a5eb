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
	"github.com/gpushare/gpushare/internal/procfs"
)

// stopTimeout is what systemd waits from SIGTERM to SIGKILL when it stops a scope. Its own default is 90 s, and a frozen
// scope uses all of it.
const stopTimeout = 10 * time.Second

// maxMoveRounds bounds how often the scope's root is emptied into the inner cgroup: each round moves what forked meanwhile.
const maxMoveRounds = 100

// StartScope makes a delegated scope around the process, makes the inner cgroup and moves everything into it. The
// process must wait meanwhile; it goes on when this returns.
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
		// Ours already, or left behind as failed by a kernel that was slow to tell.
		if st, err := a.Recover(ctx, s); err == nil {
			if ps, err := a.Members(ctx, s.ID); err == nil && slices.Contains(ps, s.Process) {
				return st, nil
			}
			return cgroup.ScopeState{}, fmt.Errorf("cannot start scope %s: there is one already: %w", s.ID, cgroup.ErrInUse)
		}
		if err := a.reset(ctx, unit); err != nil {
			return cgroup.ScopeState{}, err
		}
		err = a.startScope(ctx, unit, s)
	}
	if err != nil && !procfs.Alive(s.Process.PID, s.Process.Start) {
		err = fmt.Errorf("%w: %w", err, procfs.ErrNoProcess)
	}
	if err != nil {
		return cgroup.ScopeState{}, err
	}
	scope, err := a.scopeCgroup(ctx, unit)
	if err != nil {
		return cgroup.ScopeState{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	if err := a.moveInside(ctx, scope, s.Process); err != nil {
		return cgroup.ScopeState{}, fmt.Errorf("cannot start scope %s: %w", s.ID, err)
	}
	a.register(s.ID, scope)
	return cgroup.ScopeState{ID: s.ID, Path: path.Join(scope, inner), Unit: unit, MemoryNodes: a.h.MemoryNodes(scope)}, nil
}

// descriptorsSince is the oldest systemd that is known to take processes by descriptor (PIDFDs). 252 does not; a version
// between that does gets pids, which is right but for a pid that became another process's on the way.
const descriptorsSince = 257

// startScope starts the unit around the process.
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

// scopeProperties is what the scope is born with. Never User=: a scope of another user's delegates its cgroup to that
// user, who could then leave the inner one.
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
		return fmt.Errorf("cannot make cgroup %s: %w", run, err)
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
	return fmt.Errorf("cannot empty cgroup %s: it forks faster than it is moved: %w", scope, cgroup.ErrInUse)
}

// finishInner makes the inner cgroup end as a whole, whatever the unit's own policy is: it is ours, and no reload or change of
// the unit's properties resets it. That goes only when the scope's root is empty.
func (a *Adapter) finishInner(run string, p cgroup.Process) error {
	if err := a.h.SetOOMGroup(run); err != nil {
		return err
	}
	return a.h.Verify(p, run)
}

// Recover takes up a scope that was started by an earlier life of the daemon.
func (a *Adapter) Recover(ctx context.Context, s cgroup.Scope) (cgroup.ScopeState, error) {
	if err := checkScope(s); err != nil {
		return cgroup.ScopeState{}, errors.Join(err, cgroup.ErrNotFound) // There never was such a one.
	}
	unit := scopeUnit(a.prefix, s.ID)
	scope, err := a.scopeCgroup(ctx, unit)
	if errors.Is(err, cgroup.ErrNotFound) {
		// A lease that nobody waits for is a service.
		var st cgroup.ScopeState
		if st, _, err = a.program(ctx, s.ID); err == nil {
			unit, scope = st.Unit, path.Dir(st.Path)
		}
	}
	if err != nil {
		return cgroup.ScopeState{}, fmt.Errorf("cannot adopt scope %s: %w", s.ID, err)
	}
	if busy, err := a.h.Populated(scope); err != nil || !busy {
		return cgroup.ScopeState{}, fmt.Errorf("cannot adopt scope %s: %w", s.ID, errors.Join(err, cgroup.ErrNotFound))
	}
	a.register(s.ID, scope)
	return cgroup.ScopeState{ID: s.ID, Path: path.Join(scope, inner), Unit: unit, MemoryNodes: a.h.MemoryNodes(scope)}, nil
}

// register says whose the processes in a unit's cgroup are, and watches how they end.
func (a *Adapter) register(id, cg string) {
	a.index.Register(id, cg)
	// Where it cannot be watched, its end is told without a reason.
	_ = a.oomWatcher.Watch(a.h, id, path.Join(cg, inner), path.Dir(cg))
}

// Scopes reads back every scope that still holds a process.
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
		if !ok || u.ActiveState != "active" {
			continue
		}
		cg, err := a.unitCgroup(ctx, u.Name, kind)
		if errors.Is(err, cgroup.ErrNotFound) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, err
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

// scopeCgroup tells where the scope's cgroup is. ErrNotFound when it does not run.
func (a *Adapter) scopeCgroup(ctx context.Context, unit string) (string, error) {
	return a.unitCgroup(ctx, unit, "Scope")
}

// unitCgroup tells where a unit's processes are. One that is on its way up or reads its configuration again has processes,
// one that is on its way down is not taken up any more. ErrNotFound when it does not run.
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

// controlGroup asks where a unit's cgroup is: the mapping from unit names to paths is systemd's own business. It is
// empty for a unit that does not run.
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

// reset makes systemd forget a failed unit.
func (a *Adapter) reset(ctx context.Context, unit string) error {
	err := a.bus.do(ctx, func(ctx context.Context, l *link) error { return l.units.ResetFailedUnitContext(ctx, unit) })
	if err != nil && !is(err, "NoSuchUnit") {
		return fmt.Errorf("cannot reset unit %s: %w", unit, err)
	}
	return nil
}

func checkScope(s cgroup.Scope) error {
	// A scope's id goes the way of a slice's name: what is good for one is good for the other.
	if err := (cgroup.SliceName{Tenant: s.ID}).Check(); err != nil || s.ID == "" {
		return fmt.Errorf("cannot name a scope %q: use letters, digits, '.', '_' and '-'", s.ID)
	}
	return s.Slice.Check()
}

// unitOf is what holds a lease's processes: a scope, or the service of one that nobody waits for.
func (a *Adapter) unitOf(id string) (unit, kind string) {
	if cg, ok := a.index.Path(id); ok && path.Base(cg) == programUnit(a.prefix, id) {
		return path.Base(cg), "Service"
	}
	return scopeUnit(a.prefix, id), "Scope"
}

// ScopeDeviceRules reads the device rules of a scope back, as systemd was asked for them.
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
