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

// What is in force is read where it acts: limits from the slice's cgroup, whatever systemd believes. What only systemd can
// say (where the cgroup is, which devices were asked for) takes it and us a millisecond for each slice, so it is asked
// again only when it may have changed: after a reload or a lost connection, and when a drop-in was written, which every
// set-property does.

// sliceConfig is systemd's word about a slice.
type sliceConfig struct {
	from      dropins // what the word was derived from
	path    string
	limits  cgroup.Limits
	closed  bool
	devices []cgroup.DeviceRule
}

// dropins tells one set of drop-ins of a unit from another.
type dropins struct {
	reloads uint64
	changed [3]int64 // when each directory was, in nanoseconds; 0 when it is not there
}

// stable tells whether another change would show: a clock that ticks every few milliseconds gives two changes at once
// the same time.
func (d dropins) stable(now time.Time) bool {
	return now.UnixNano()-slices.Max(d.changed[:]) > int64(2*time.Second)
}

// dropinRoots is where SetUnitProperties writes (systemd.unit(5)): lasting, until the next boot, and for transient units.
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

// readConfig reads systemd's word about a slice that is active, from memory when nothing can have changed it.
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
	config.from = now // as it was before: what changed since shows the next time
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

// forget drops the word about units that are not among these any more.
func (a *Adapter) forget(present []string) {
	a.configsMu.Lock()
	defer a.configsMu.Unlock()
	for unit := range a.configs {
		if !slices.Contains(present, unit) {
			delete(a.configs, unit)
		}
	}
}

// inForce is the limits that act on a slice. A slice that has no cgroup now will be born with what systemd was asked for.
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

// devicesEnforced tells whether the device rules that systemd was asked for act on a slice: it has a program. Which one it is only
// systemd can say. A slice that has no cgroup now will be born with what systemd was asked for.
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

// Slices reads back every slice of ours that is loaded.
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

// Slice reads one slice of ours back.
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
