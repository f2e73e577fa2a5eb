package devicepolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// SystemdLogins is the cgroup that systemd and logind put every login into.
const SystemdLogins = cgroup.LoginSlice

// LoginFilter denies managed GPUs to logins, to units that run commands of users and to adopted units, by device programs on
// their cgroups. What the programs
// deny is read back from the kernel. A file, which is kept until reboot, records the units that have one: other programs on
// the host do not belong to gpushare.
type LoginFilter struct {
	mount     string
	Supported bool   // programs can be attached on this host
	Logins    string // the cgroup of logins; empty where none is known
	Reason    string // why logins cannot be filtered; empty: they can
	file      string // records the cgroups of units

	mu      locks.Mutex[locks.Logins] // protects the fields below; one call changes filters at a time
	units   map[string]bool           // cgroups of units that may have a filter of gpushare
	writes  uint64                    // how often a filter was written or removed
	lastErr error                     // why the last attempt to set one failed
}

// NewLoginFilter finds the filters of the previous run. Programs of another version are replaced. logins is the cgroup of
// the logins of this host; empty: it is not known.
func NewLoginFilter(h cgroup.Hierarchy, logins, runDir string, info cgroup.Info) *LoginFilter {
	g := &LoginFilter{
		mount: h.Mount, Supported: h.Mount != "" && info.Devices, Logins: logins,
		file: filepath.Join(runDir, "login-filters.json"), units: map[string]bool{},
	}
	switch {
	case h.Mount == "":
		g.Reason = "no cgroups are available"
	case !info.Devices:
		g.Reason = WhyNoDeviceRules(info)
	case g.Logins == "":
		g.Reason = "the cgroup of the logins of this host is not known"
	}
	if !g.Supported {
		return g
	}
	b, err := boundedread.Trusted(g.file, boundedread.Record)
	if err == nil {
		err = json.Unmarshal(b, &g.units)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.lastErr = fmt.Errorf("cannot read which units have a login filter: %w", err)
	}
	for _, cg := range g.cgroupsLocked() {
		if is, ok, err := devices.ReadLoginFilter(h.Dir(cg)); err == nil && ok {
			if _, err := devices.SetLoginFilter(h.Dir(cg), is); err != nil {
				g.lastErr = err
			}
		}
	}
	return g
}

// cgroupsLocked returns the cgroups that may have a filter of gpushare. mu is held.
func (g *LoginFilter) cgroupsLocked() []string {
	all := slices.Sorted(maps.Keys(g.units))
	if g.Logins != "" {
		all = append(all, g.Logins)
	}
	return all
}

// Filters reads the filters back.
func (g *LoginFilter) Filters(context.Context) ([]devices.LoginFilterState, error) {
	if !g.Supported {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var states []devices.LoginFilterState
	for _, cg := range g.cgroupsLocked() {
		id := g.ID(cg) // Before the filter: that of a cgroup that comes after it is not read as the filter of this one.
		is, ok, err := devices.ReadLoginFilter(cgroup.Hierarchy{Mount: g.mount}.Dir(cg))
		switch {
		case errors.Is(err, devices.ErrNoCgroup), err == nil && !ok:
			continue
		case err != nil:
			return nil, fmt.Errorf("cannot read the login filter of %s: %w", cg, err)
		}
		states = append(states, devices.LoginFilterState{Cgroup: cg, Filter: is, ID: id, Writes: g.writes})
	}
	return states, nil
}

// ChangeFilter sets the filter of a cgroup to what change returns for the active one; nil is none.
func (g *LoginFilter) ChangeFilter(
	_ context.Context, cg string, change func(now *devices.LoginFilter) *devices.LoginFilter,
) (wrote bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var now *devices.LoginFilter
	is, ok, err := devices.ReadLoginFilter(cgroup.Hierarchy{Mount: g.mount}.Dir(cg))
	if err != nil && !errors.Is(err, devices.ErrNoCgroup) {
		return false, fmt.Errorf("cannot read the login filter of %s: %w", cg, err)
	}
	if ok {
		now = &is
	}
	return g.setLocked(cg, change(now))
}

// Replace makes the desired filters the only ones. desired is called while no other call changes a filter.
func (g *LoginFilter) Replace(desired func() ([]devices.LoginFilterState, error)) (writes int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	states, err := desired()
	if err != nil {
		return 0, err
	}
	var errs []error
	set := func(cg string, filter *devices.LoginFilter) {
		wrote, err := g.setLocked(cg, filter)
		if wrote {
			writes++
		}
		errs = append(errs, err)
	}
	for _, s := range states {
		set(s.Cgroup, &s.Filter)
	}
	for _, cg := range g.cgroupsLocked() {
		if !slices.ContainsFunc(states, func(s devices.LoginFilterState) bool { return s.Cgroup == cg }) {
			set(cg, nil)
		}
	}
	return writes, errors.Join(errs...)
}

// setLocked sets or removes the filter of a cgroup. A unit that has ended needs none. mu is held.
func (g *LoginFilter) setLocked(cg string, want *devices.LoginFilter) (wrote bool, err error) {
	dir := cgroup.Hierarchy{Mount: g.mount}.Dir(cg)
	if want == nil {
		wrote, err = devices.RemoveLoginFilter(dir)
	} else if err = g.noteLocked(cg, true); err == nil { // Before it is active, so that a later run finds it.
		wrote, err = devices.SetLoginFilter(dir, *want)
	}
	if wrote {
		g.writes++
	}
	if errors.Is(err, devices.ErrNoCgroup) && cg != g.Logins {
		want, err = nil, nil
	}
	if err == nil && want == nil {
		err = g.noteLocked(cg, false)
	}
	if g.lastErr = err; err != nil {
		return wrote, fmt.Errorf("cannot set the login filter of %s: %w", cg, err)
	}
	return wrote, nil
}

// noteLocked records in the file which units may have a filter. mu is held.
func (g *LoginFilter) noteLocked(cg string, filtered bool) error {
	if cg == g.Logins || g.units[cg] == filtered {
		return nil
	}
	units := maps.Clone(g.units)
	delete(units, cg)
	if filtered {
		units[cg] = true
	}
	b, err := json.Marshal(units)
	if err == nil {
		err = store.Replace(g.file, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot record which units have a login filter: %w", err)
	}
	g.units = units
	return nil
}

// Exists reports whether the cgroup exists.
func (g *LoginFilter) Exists(cg string) bool { return cgroup.Hierarchy{Mount: g.mount}.Exists(cg) }

// ID is the number of a cgroup, as of cgroup.Hierarchy.
func (g *LoginFilter) ID(cg string) uint64 { return cgroup.Hierarchy{Mount: g.mount}.ID(cg) }

// Writes is how many filters gpushare has written in this run.
func (g *LoginFilter) Writes() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.writes
}

// Units finds the cgroups of units of the system, by name. A unit that does not run may have none.
func (g *LoginFilter) Units(names []string) (map[string]string, error) {
	if !g.Supported {
		return nil, nil
	}
	return cgroup.Hierarchy{Mount: g.mount}.FindUnits(names, g.Logins)
}

// LastError returns why the last change of a filter failed; nil: it did not.
func (g *LoginFilter) LastError() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lastErr
}

// DesiredFilters returns the filters that should be active, from one observation and the current leases.
func (pol *Policy) DesiredFilters(
	want *state.Desired, node *observe.Node, hardwareSteps []step.Step, leases []lease.Lease,
) ([]devices.LoginFilterState, []string, error) {
	if !want.FiltersLogins() || !pol.Logins.Supported {
		return nil, nil, nil
	}
	hw, err := pol.hardware(node, hardwareSteps)
	if err != nil {
		return nil, nil, err
	}
	closed, err := pol.closedCgroups(want)
	if err != nil {
		return nil, nil, err
	}
	if driverUnavailable(node) {
		return pol.filtersWithoutDriver(&hw, node, closed), nil, nil
	}
	var attached []isolation.InPlaceLease
	for i := range leases {
		l := &leases[i]
		if !l.InPlace() || l.Origin == lease.OriginContainer {
			continue
		}
		v := isolation.InPlaceLease{Lease: l.ID, UID: uint32(l.UID), Cgroup: cgroupOf(l), Unit: l.Origin == lease.OriginUnit}
		if t, ok := want.Tenant(l.Terms.Tenant); ok {
			v.Classes = t.Devices
		}
		for _, id := range l.Place.GPUs {
			if pol.State.Stale(l) {
				break
			}
			v.Targets = append(v.Targets, pol.target(id, l.Place.Instance, l.Place.Compute))
		}
		attached = append(attached, v)
	}
	adopted := pol.adopted.Load()
	if adopted != nil {
		// An adopted unit may open only what it has a lease on, also while it has no lease.
		for _, cg := range *adopted {
			attached = append(attached, isolation.InPlaceLease{Cgroup: cg, Unit: true})
		}
	}
	states, missing := isolation.LoginFilters(&hw, want.Managed(), closed, attached)
	for _, s := range node.LoginFilters {
		if adopted == nil && s.Cgroup != pol.Logins.Logins &&
			!slices.ContainsFunc(states, func(w devices.LoginFilterState) bool { return w.Cgroup == s.Cgroup }) {
			states = append(states, s) // It is not known yet whether the unit runs and is adopted.
		}
	}
	// On a node without managed GPUs no filter is needed.
	states = slices.DeleteFunc(states, func(s devices.LoginFilterState) bool { return len(s.Filter.Closed) == 0 })
	return states, missing, nil
}

// FilterUnits records which adopted units run, and filters the new ones.
func (pol *Policy) FilterUnits(here []lease.AdoptionCandidate) {
	units := []string{}
	for i := range here {
		if n := &here[i]; n.Origin == lease.OriginUnit && len(n.Claims) > 0 && n.Cgroup != "" {
			units = append(units, n.Cgroup)
		}
	}
	if old := pol.adopted.Swap(&units); old != nil && slices.Equal(*old, units) {
		return
	}
	if err := pol.SyncLoginFilters(nil, ""); err != nil {
		pol.Log.Warn("cannot set the login filters of the adopted units", "error", err) // The converge loop tries again.
	}
}

// closedCgroups returns the cgroups of logins and of the units that are closed as logins are.
func (pol *Policy) closedCgroups(want *state.Desired) ([]string, error) {
	units, err := pol.Logins.Units(want.ClosedUnits())
	if err != nil {
		return nil, fmt.Errorf("cannot find the units of isolation.units: %w", err)
	}
	var closed []string
	if pol.Logins.Logins != "" {
		closed = append(closed, pol.Logins.Logins)
	}
	return append(closed, slices.Sorted(maps.Values(units))...), nil
}

// followUnits attaches login filters to started units until ctx ends: the cgroup of a started unit is new, and has none. The
// converge loop attaches what this misses.
func (pol *Policy) followUnits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-pol.Units.C():
		}
		if err := pol.SyncLoginFilters(nil, ""); err != nil {
			pol.Log.Warn("cannot set the login filter of a started unit", "error", err)
		}
	}
}

// cgroupOf returns the cgroup of a lease attached in place; empty: it is not known.
func cgroupOf(l *lease.Lease) string {
	if l.Cgroup != "" {
		return l.Cgroup
	}
	cg, err := procfs.Cgroup(l.Process.PID)
	if err != nil {
		return ""
	}
	return cg
}

// LoginFiltered reports whether a login filter limits a lease attached in place to the GPUs of its user's leases.
func (pol *Policy) LoginFiltered(l *lease.Lease) bool {
	want := pol.State.Desired()
	if !want.Enforcing() || !want.FiltersLogins() || !pol.Logins.Supported || pol.Logins.LastError() != nil {
		return false
	}
	cg := cgroupOf(l)
	if l.Origin == lease.OriginUnit {
		return true
	}
	closed, err := pol.closedCgroups(want)
	return err == nil && cg != "" && slices.ContainsFunc(closed, func(c string) bool { return cgroup.Below(cg, c) })
}

// driverUnavailable reports whether no GPU was ever read, because the driver does not answer. If it answered before, the
// device numbers of its GPUs are still valid.
func driverUnavailable(node *observe.Node) bool { return node.DriverErr != nil && len(node.GPUs) == 0 }

// filtersWithoutDriver returns the filters while no GPU is known: the active ones, and for a closed cgroup without a filter one
// that closes all GPUs.
func (pol *Policy) filtersWithoutDriver(hw *isolation.Hardware, node *observe.Node, closed []string) []devices.LoginFilterState {
	states := slices.Clone(node.LoginFilters)
	for _, cg := range closed {
		if !slices.ContainsFunc(states, func(s devices.LoginFilterState) bool { return s.Cgroup == cg }) {
			states = append(
				states,
				devices.LoginFilterState{Cgroup: cg, Filter: devices.LoginFilter{Closed: isolation.AllGPUs(&hw.Host)}.Canonical()},
			)
		}
	}
	return states
}

// filterNow computes a step that grants access again, from what is observed when the step is carried out.
func (pol *Policy) filterNow(ctx context.Context, s step.Step) (step.Step, bool, error) {
	var planned isolation.LoginFilterArgs
	if err := json.Unmarshal(s.Args, &planned); err != nil {
		return s, false, fmt.Errorf("cannot read the step: %w", err)
	}
	if planned.Filter == nil {
		return s, true, nil
	}
	states, _, err := pol.DesiredFilters(pol.State.Desired(), pol.Observer.Observe(ctx), nil, pol.Table.Live())
	if err != nil {
		return s, false, err
	}
	i := slices.IndexFunc(states, func(g devices.LoginFilterState) bool { return g.Cgroup == planned.Cgroup })
	if i < 0 {
		return s, false, nil
	}
	planned.Filter = &states[i].Filter
	s.Args = step.Must(planned)
	return s, true, nil
}

// SyncLoginFilters updates the filters for the leases, with one lease more or one less. It returns before the user
// learns that they have a GPU, so that they can open it.
func (pol *Policy) SyncLoginFilters(more *lease.Lease, less string) error {
	want, node := pol.State.Desired(), pol.Observer.Last()
	if !want.Enforcing() || !want.FiltersLogins() || !pol.Logins.Supported || driverUnavailable(node) {
		return nil
	}
	writes, err := pol.Logins.Replace(func() ([]devices.LoginFilterState, error) {
		leases := slices.DeleteFunc(pol.Table.Live(), func(l lease.Lease) bool { return l.ID == less || more != nil && l.ID == more.ID })
		if more != nil {
			leases = append(leases, *more)
		}
		states, _, err := pol.DesiredFilters(want, node, nil, leases)
		return slices.DeleteFunc(states, func(s devices.LoginFilterState) bool { return !pol.Logins.Exists(s.Cgroup) }), err
	})
	pol.Counters.FilterWrites.Add(uint64(writes))
	return err
}
