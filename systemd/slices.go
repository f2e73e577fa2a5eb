package systemd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	sd "github.com/coreos/go-systemd/v22/dbus"

	"github.com/gpushare/gpushare/cgroup"
)

// SetSlice creates the slice, or changes it to exactly this. Properties are set before the slice is started: they then apply
// from its start, while a slice of StartTransientUnit would lose them when it stops.
func (a *Adapter) SetSlice(ctx context.Context, s cgroup.Slice) (wrote bool, err error) {
	if err := s.Name.Check(); err != nil {
		return false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	unit := sliceUnit(a.prefix, s.Name)
	active, err := a.state(ctx, unit)
	if err != nil {
		return false, fmt.Errorf("cannot read slice %s back: %w", s.Name, err)
	}
	props, err := a.typed(ctx, unit, "Slice")
	if err != nil {
		return false, fmt.Errorf("cannot read slice %s back: %w", s.Name, err)
	}
	config := configOf(props)
	effective, err := a.inForce(config)
	if err != nil {
		return false, fmt.Errorf("cannot read slice %s back: %w", s.Name, err)
	}
	devicesEnforced, err := a.devicesEnforced(config)
	if err != nil {
		return false, fmt.Errorf("cannot read slice %s back: %w", s.Name, err)
	}
	persistentProps, runtimeProps, err := a.sliceChanges(props, effective, devicesEnforced, s)
	if err != nil {
		return false, err
	}
	for _, set := range []struct {
		lasts lifetime
		props []sd.Property
	}{{persistent, persistentProps}, {runtime, runtimeProps}} {
		if len(set.props) == 0 {
			continue
		}
		wrote = true
		err := a.bus.do(ctx, func(ctx context.Context, l *link) error {
			return l.units.SetUnitPropertiesContext(ctx, unit, bool(set.lasts), set.props...)
		})
		if err != nil {
			return wrote, fmt.Errorf("cannot set %s of slice %s: %w", names(set.props), s.Name, err)
		}
	}
	if active == "active" {
		if wrote {
			// systemd replies before it writes the cgroup. The reply to the next call comes after it.
			if _, err = a.state(ctx, unit); err == nil {
				err = a.verifyDevices(config.path, s)
			}
		}
		return wrote, err
	}
	return true, a.bus.job(ctx, "start slice "+s.Name.String(),
		func(ctx context.Context, c *sd.Conn, ended chan<- string) (int, error) {
			return c.StartUnitContext(ctx, unit, "replace", ended)
		})
}

// verifyDevices checks that a slice with device rules has its device program.
func (a *Adapter) verifyDevices(path string, s cgroup.Slice) error {
	devicesEnforced, err := a.devicesEnforced(sliceConfig{path: path, closed: s.Closed})
	if err != nil {
		return fmt.Errorf("cannot read slice %s back: %w", s.Name, err)
	}
	if s.Closed && !devicesEnforced {
		return fmt.Errorf(
			"cannot close the devices of slice %s: systemd accepted the rules, but its cgroup %s has no device program", s.Name, path,
		)
	}
	return nil
}

// sliceChanges returns the properties to set so that the slice becomes as requested, by their lifetime. A property that
// systemd has and that does not act (another program wrote in the cgroup, or removed the device program) is set again:
// systemd then writes all its properties.
func (a *Adapter) sliceChanges(
	is map[string]any, effective cgroup.Limits, devicesEnforced bool, s cgroup.Slice,
) (persistentProps, runtimeProps []sd.Property, err error) {
	supported, _ := s.Limits.Only(a.info.Limits)
	want, err := limitValues(supported)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot set slice %s: %w", s.Name, err)
	}
	have, err := limitValues(limitsOf(is))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read slice %s back: %w", s.Name, err)
	}
	effect, err := limitValues(effective)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read slice %s back: %w", s.Name, err)
	}
	for _, p := range table() {
		if !slices.Contains(a.info.Limits, p.limit) {
			continue
		}
		if !sameValue(want[p.name], have[p.name]) || !sameValue(want[p.name], effect[p.name]) {
			persistentProps = append(persistentProps, prop(p.name, want[p.name]))
		}
	}
	closed, rules := devicesOf(is)
	policy, _ := is["DevicePolicy"].(string)
	switch {
	case s.Closed:
		if policy != "closed" {
			persistentProps = append(persistentProps, prop("DevicePolicy", "closed"))
		}
		want := devicesFor(s.Devices)
		if !closed || !devicesEnforced || !slices.Equal(devicesFor(rules), want) || hasForeign(rules) {
			runtimeProps = replaceDevices(want)
		}
	case closed:
		runtimeProps = replaceDevices(openDevices())
	}
	return persistentProps, runtimeProps, nil
}

// replaceDevices returns the properties that make these the only entries: systemd appends entries, and an empty array clears
// them.
func replaceDevices(entries []deviceAllow) []sd.Property {
	set := []sd.Property{prop("DeviceAllow", []deviceAllow{})}
	if len(entries) > 0 {
		set = append(set, prop("DeviceAllow", entries))
	}
	return set
}

func hasForeign(rules []cgroup.DeviceRule) bool {
	return slices.ContainsFunc(rules, func(r cgroup.DeviceRule) bool { return r.Type == 0 })
}

func sameValue(a, b any) bool {
	x, ok1 := a.([]byte)
	y, ok2 := b.([]byte)
	if ok1 && ok2 {
		return bytes.Equal(x, y)
	}
	return a == b
}

// RemoveSlice stops an empty slice and removes its drop-ins, so that it does not start with old limits later.
func (a *Adapter) RemoveSlice(ctx context.Context, name cgroup.SliceName) error {
	if err := name.Check(); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	unit := sliceUnit(a.prefix, name)
	active, err := a.state(ctx, unit)
	if err != nil && !is(err, "NoSuchUnit") {
		return fmt.Errorf("cannot remove slice %s: %w", name, err)
	}
	if active == "active" {
		// Stopping a slice stops all processes in it.
		cg, err := a.controlGroup(ctx, unit, "Slice")
		if err != nil {
			return fmt.Errorf("cannot remove slice %s: %w", name, err)
		}
		ps, err := a.processes(cg)
		if err != nil {
			return fmt.Errorf("cannot remove slice %s: %w", name, err)
		}
		if len(ps) > 0 {
			return fmt.Errorf(
				"cannot remove slice %s: it has %d processes, the first is pid %d: %w", name, len(ps), ps[0].PID, cgroup.ErrInUse,
			)
		}
		if err := a.stop(ctx, unit); err != nil {
			return err
		}
	}
	return a.revert(ctx, unit)
}

// processes lists the processes of a cgroup, none when the cgroup does not exist.
func (a *Adapter) processes(cg string) ([]cgroup.Process, error) {
	if cg == "" {
		return nil, nil
	}
	ps, err := a.h.Processes(cg)
	if errors.Is(err, cgroup.ErrNotFound) {
		return nil, nil
	}
	return ps, err
}

// revert removes the drop-ins of a unit. The library has no function for it.
func (a *Adapter) revert(ctx context.Context, unit string) error {
	err := a.bus.do(ctx, func(ctx context.Context, l *link) error {
		return l.raw.Object(busName, managerPath).CallWithContext(ctx, managerIface+".RevertUnitFiles", 0, []string{unit}).Err
	})
	if err != nil && !is(err, "NoSuchUnit") {
		return fmt.Errorf("cannot remove the drop-ins of %s: %w", unit, err)
	}
	return nil
}

func names(props []sd.Property) string {
	var list []string
	for _, p := range props {
		if !slices.Contains(list, p.Name) {
			list = append(list, p.Name)
		}
	}
	return strings.Join(list, ", ")
}

// escapeGlob escapes the backslashes of an escaped name for a pattern.
func escapeGlob(s string) string { return strings.ReplaceAll(s, `\`, `\\`) }
