package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"

	"github.com/gpushare/gpushare/cgroup"
)

// Limits are read from the slice's cgroup, where they act, and not from systemd. What only systemd knows (the path of the
// cgroup, the device rules that it was given) costs about a millisecond for each slice. So it is queried only when it may
// have changed: after a reload or a lost connection, and when a drop-in was written, which every set-property does.

// sliceConfig is what systemd reports of a slice.
type sliceConfig struct {
	from    dropins // the drop-ins when it was read
	path    string
	limits  cgroup.Limits
	closed  bool
	devices []cgroup.DeviceRule
}

// dropins identifies one state of the drop-ins of a unit.
type dropins struct {
	reloads uint64
	changed [3]int64 // modification time of each directory, in nanoseconds; 0 when it does not exist
}

// stable reports whether a later change would be noticed: the clock of a filesystem ticks every few milliseconds, so two
// changes in a row can have the same time.
func (d dropins) stable(now time.Time) bool {
	return now.UnixNano()-slices.Max(d.changed[:]) > int64(2*time.Second)
}

// dropinRoots are the directories that SetUnitProperties writes to (systemd.unit(5)): persistent, until the next boot, and
// for transient units.
func dropinRoots() [3]string {
	return [3]string{"/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient"}
}

func (a *Adapter) dropins(unit string) dropins {
	d := dropins{reloads: a.bus.reloads.Load()}
	for i, root := range a.roots {
		if fi, err := os.Stat(filepath.Join(root, unit+".d")); err == nil {
			d.changed[i] = fi.ModTime().UnixNano()
		}
	}
	return d
}

// readConfig reads what systemd reports of an active slice, from memory when it cannot have changed.
func (a *Adapter) readConfig(ctx context.Context, unit string) (sliceConfig, error) {
	now := a.dropins(unit)
	a.configsMu.Lock()
	known, ok := a.configs[unit]
	a.configsMu.Unlock()
	if ok && known.from == now {
		return known, nil
	}
	props, err := a.typed(ctx, unit, "Slice")
	if err != nil {
		return sliceConfig{}, err
	}
	config := configOf(props)
	config.from = now // as it was before the query: a later change is noticed the next time
	a.configsMu.Lock()
	defer a.configsMu.Unlock()
	if config.path != "" && now.stable(time.Now()) {
		a.configs[unit] = config
	} else {
		delete(a.configs, unit)
	}
	return config, nil
}

func configOf(props map[string]any) sliceConfig {
	var config sliceConfig
	config.path, _ = props["ControlGroup"].(string)
	config.limits = limitsOf(props)
	config.closed, config.devices = devicesOf(props)
	return config
}

// forget drops the configurations of units that are not present any more.
func (a *Adapter) forget(present []string) {
	a.configsMu.Lock()
	defer a.configsMu.Unlock()
	for unit := range a.configs {
		if !slices.Contains(present, unit) {
			delete(a.configs, unit)
		}
	}
}

// inForce returns the limits that act on a slice. A slice without a cgroup will start with what systemd was given.
func (a *Adapter) inForce(config sliceConfig) (cgroup.Limits, error) {
	supported, _ := config.limits.Only(a.info.Limits)
	if config.path == "" {
		return supported, nil
	}
	l, err := a.h.Limits(config.path, a.info.Limits, supported)
	if errors.Is(err, cgroup.ErrNotFound) {
		return supported, nil
	}
	return l, err
}

// devicesEnforced reports whether the device rules that systemd was given act on a slice: its cgroup has a device program. A
// slice without a cgroup will start with what systemd was given.
func (a *Adapter) devicesEnforced(config sliceConfig) (bool, error) {
	if !config.closed || config.path == "" || a.devicePrograms == nil {
		return config.closed, nil
	}
	n, err := a.devicePrograms(a.h.Dir(config.path))
	if errors.Is(err, cgroup.ErrNotFound) {
		return true, nil
	}
	return n > 0, err
}

// Slices reads back every loaded slice of gpushare.
func (a *Adapter) Slices(ctx context.Context) ([]cgroup.SliceState, error) {
	units, err := a.list(ctx, escapeGlob(escape(a.prefix))+".slice", escapeGlob(escape(a.prefix))+"-*.slice")
	if err != nil {
		return nil, err
	}
	var states []cgroup.SliceState
	present := make([]string, 0, len(units))
	for _, u := range units {
		name, ok := sliceOf(a.prefix, u.Name)
		if !ok || u.ActiveState != "active" {
			continue
		}
		st, err := a.readSlice(ctx, u.Name, name)
		if errors.Is(err, cgroup.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		present = append(present, u.Name)
		states = append(states, st)
	}
	a.forget(present)
	slices.SortFunc(states, func(x, y cgroup.SliceState) int { return strings.Compare(x.Path, y.Path) })
	return states, nil
}

// Slice reads back one slice of gpushare.
func (a *Adapter) Slice(ctx context.Context, name cgroup.SliceName) (cgroup.SliceState, error) {
	if err := name.Check(); err != nil {
		return cgroup.SliceState{}, err
	}
	unit := sliceUnit(a.prefix, name)
	units, err := a.list(ctx, escapeGlob(unit))
	if err != nil {
		return cgroup.SliceState{}, err
	}
	if !slices.ContainsFunc(units, func(u sd.UnitStatus) bool { return u.Name == unit && u.ActiveState == "active" }) {
		return cgroup.SliceState{}, fmt.Errorf("slice %s: %w", name, cgroup.ErrNotFound)
	}
	return a.readSlice(ctx, unit, name)
}

func (a *Adapter) readSlice(ctx context.Context, unit string, name cgroup.SliceName) (cgroup.SliceState, error) {
	config, err := a.readConfig(ctx, unit)
	if is(err, "NoSuchUnit") {
		return cgroup.SliceState{}, fmt.Errorf("slice %s: %w", name, cgroup.ErrNotFound)
	}
	if err != nil {
		return cgroup.SliceState{}, err
	}
	st := cgroup.SliceState{Name: name, Path: config.path}
	if st.Closed, err = a.devicesEnforced(config); err != nil {
		return cgroup.SliceState{}, err
	}
	if st.Closed {
		st.Devices = slices.Clone(config.devices)
	}
	st.Limits, err = a.inForce(config)
	return st, err
}
