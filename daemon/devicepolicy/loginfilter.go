package devicepolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpushare/gpushare/cgroup"
	devices "github.com/gpushare/gpushare/cgroup/device"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/locks"
	"github.com/gpushare/gpushare/internal/observe"
	"github.com/gpushare/gpushare/internal/procfs"
	"github.com/gpushare/gpushare/internal/step"
	"github.com/gpushare/gpushare/internal/store"
	"github.com/gpushare/gpushare/isolation"
	"github.com/gpushare/gpushare/lease"
)

// SystemdLogins is the cgroup that systemd and logind put every login into.
const SystemdLogins = "/user.slice"

// LoginFilter keeps logins, and units that were adopted, from managed GPUs by device programs on their cgroups. What they
// deny is read back from the kernel. On which units' cgroups they are is kept in a file until reboot: a host may have
// guards that are not ours.
type LoginFilter struct {
	mount     string
	Supported bool   // programs can be attached here
	Logins    string // the cgroup of logins; empty where none is known
	Reason    string // why logins cannot be guarded; empty when they can
	file      string // of the units' cgroups

	mu      locks.Mutex[locks.Logins] // guards what follows, and that one changes a guard at a time
	units   map[string]bool           // cgroups of units that may have a guard of ours
	lastErr error                     // why the last try to set one failed
}

// NewLoginFilter finds the guards that an earlier life left. Those of another version of ours become this one's. logins is
// the cgroup that holds the logins of this host; empty where none is known to.
func NewLoginFilter(h cgroup.Hierarchy, logins, runDir string, info cgroup.Info) *LoginFilter {
	g := &LoginFilter{
		mount: h.Mount, Supported: h.Mount != "" && info.Devices, Logins: logins,
		file: filepath.Join(runDir, "guarded.json"), units: map[string]bool{},
	}
	switch {
	case h.Mount == "":
		g.Reason = "there are no cgroups to use"
	case !info.Devices:
		g.Reason = WhyNoDeviceRules(info)
	case g.Logins == "":
		g.Reason = "no cgroup is known to hold the logins of this host"
	}
	if !g.Supported {
		return g
	}
	b, err := os.ReadFile(g.file)
	if err == nil {
		err = json.Unmarshal(b, &g.units)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.lastErr = fmt.Errorf("which units are guarded cannot be read: %w", err)
	}
	for _, cg := range g.cgroupsLocked() {
		if is, ok, err := devices.ReadGuard(h.Dir(cg)); err == nil && ok {
			if _, err := devices.SetGuard(h.Dir(cg), is); err != nil {
				g.lastErr = err
			}
		}
	}
	return g
}

// cgroupsLocked is where guards of ours may be. mu is held.
func (g *LoginFilter) cgroupsLocked() []string {
	all := slices.Sorted(maps.Keys(g.units))
	if g.Logins != "" {
		all = append(all, g.Logins)
	}
	return all
}

// Filters reads the guards back.
func (g *LoginFilter) Filters(context.Context) ([]devices.State, error) {
	if !g.Supported {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var states []devices.State
	for _, cg := range g.cgroupsLocked() {
		is, ok, err := devices.ReadGuard(cgroup.Hierarchy{Mount: g.mount}.Dir(cg))
		switch {
		case errors.Is(err, devices.ErrNoCgroup), err == nil && !ok:
			continue
		case err != nil:
			return nil, fmt.Errorf("cannot read the guard of %s: %w", cg, err)
		}
		states = append(states, devices.State{Cgroup: cg, Guard: is})
	}
	return states, nil
}

// ChangeFilter puts what change makes of the guard that stands onto the cgroup; nil is none.
func (g *LoginFilter) ChangeFilter(_ context.Context, cg string, change func(now *devices.Guard) *devices.Guard) (wrote bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var now *devices.Guard
	is, ok, err := devices.ReadGuard(cgroup.Hierarchy{Mount: g.mount}.Dir(cg))
	if err != nil && !errors.Is(err, devices.ErrNoCgroup) {
		return false, fmt.Errorf("cannot read the guard of %s: %w", cg, err)
	}
	if ok {
		now = &is
	}
	return g.setLocked(cg, change(now))
}

// Replace makes these all the guards there are. They are worked out while nobody else changes one.
func (g *LoginFilter) Replace(desired func() ([]devices.State, error)) (writes int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	states, err := desired()
	if err != nil {
		return 0, err
	}
	var errs []error
	set := func(cg string, filter *devices.Guard) {
		wrote, err := g.setLocked(cg, filter)
		if wrote {
			writes++
		}
		errs = append(errs, err)
	}
	for _, s := range states {
		set(s.Cgroup, &s.Guard)
	}
	for _, cg := range g.cgroupsLocked() {
		if !slices.ContainsFunc(states, func(s devices.State) bool { return s.Cgroup == cg }) {
			set(cg, nil)
		}
	}
	return writes, errors.Join(errs...)
}

// setLocked puts the guard onto the cgroup, or takes it off. A unit that has ended needs none. mu is held.
func (g *LoginFilter) setLocked(cg string, want *devices.Guard) (wrote bool, err error) {
	dir := cgroup.Hierarchy{Mount: g.mount}.Dir(cg)
	if want == nil {
		wrote, err = devices.RemoveGuard(dir)
	} else if err = g.noteLocked(cg, true); err == nil { // before it is there, so that it is found after our death
		wrote, err = devices.SetGuard(dir, *want)
	}
	if errors.Is(err, devices.ErrNoCgroup) && cg != g.Logins {
		want, err = nil, nil
	}
	if err == nil && want == nil {
		err = g.noteLocked(cg, false)
	}
	if g.lastErr = err; err != nil {
		return wrote, fmt.Errorf("cannot guard %s: %w", cg, err)
	}
	return wrote, nil
}

// noteLocked keeps on file which units may have a guard. mu is held.
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
		return fmt.Errorf("cannot note which units are guarded: %w", err)
	}
	g.units = units
	return nil
}

// Exists tells whether the cgroup exists.
func (g *LoginFilter) Exists(cg string) bool { return cgroup.Hierarchy{Mount: g.mount}.Exists(cg) }

// LastError is why the last change of a guard failed; nil when it did not.
func (g *LoginFilter) LastError() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lastErr
}

// DesiredFilters works out the guards that should stand, from one observation, with the leases that there are.
func (pol *Policy) DesiredFilters(want *state.Desired, node *observe.Node, hardwareSteps []step.Step, leases []lease.Lease) ([]devices.State, []string, error) {
	if !want.Guarding() || !pol.Logins.Supported {
		return nil, nil, nil
	}
	hw, err := pol.hardware(node, hardwareSteps)
	if err != nil {
		return nil, nil, err
	}
	if driverUnavailable(node) {
		return pol.filtersWithoutDriver(&hw, node), nil, nil
	}
	var attached []isolation.Visitor
	for i := range leases {
		l := &leases[i]
		if !l.InPlace() || l.Origin == lease.OriginContainer {
			continue
		}
		v := isolation.Visitor{Lease: l.ID, UID: uint32(l.UID), Cgroup: cgroupOf(l), Unit: l.Origin == lease.OriginUnit}
		for _, id := range l.Place.GPUs {
			if pol.State.Stale(l) {
				break
			}
			v.Targets = append(v.Targets, isolation.Target{GPU: id, Instance: l.Place.Instance})
		}
		attached = append(attached, v)
	}
	adopted := pol.adopted.Load()
	if adopted != nil {
		// A unit that a tenant adopts is kept from what it has no lease on, also while it has none.
		for _, cg := range *adopted {
			attached = append(attached, isolation.Visitor{Cgroup: cg, Unit: true})
		}
	}
	states, missing := isolation.Guards(&hw, want.Managed(), pol.Logins.Logins, attached)
	for _, s := range node.LoginFilters {
		if adopted == nil && s.Cgroup != pol.Logins.Logins && !slices.ContainsFunc(states, func(w devices.State) bool { return w.Cgroup == s.Cgroup }) {
			states = append(states, s) // Whether it runs still, and is wanted, is not known yet.
		}
	}
	// A node that manages no GPU keeps nobody from any.
	states = slices.DeleteFunc(states, func(s devices.State) bool { return len(s.Guard.Closed) == 0 })
	return states, missing, nil
}

// FilterUnits notes which units the spec adopts and that run, and guards those that are new.
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
		pol.Log.Warn("cannot guard the units that are adopted", "error", err) // The converge loop tries again.
	}
}

// cgroupOf is where a visitor's processes are; empty when that is not known.
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

// LoginFiltered tells whether a guard keeps a visitor's processes to the GPUs of its user's leases.
func (pol *Policy) LoginFiltered(l *lease.Lease) bool {
	if want := pol.State.Desired(); !want.Enforcing() || !want.Guarding() || !pol.Logins.Supported || pol.Logins.LastError() != nil {
		return false
	}
	cg := cgroupOf(l)
	return l.Origin == lease.OriginUnit || pol.Logins.Logins != "" && cg != "" && cgroup.Below(cg, pol.Logins.Logins)
}

// driverUnavailable tells whether no GPU was ever seen, because the driver does not answer. One that answered before is believed: the
// numbers of its GPUs are what they were.
func driverUnavailable(node *observe.Node) bool { return node.DriverErr != nil && len(node.GPUs) == 0 }

// filtersWithoutDriver is what should stand while no GPU is known: what does, and where nothing does, everything closed.
func (pol *Policy) filtersWithoutDriver(hw *isolation.Hardware, node *observe.Node) []devices.State {
	states := slices.Clone(node.LoginFilters)
	if pol.Logins.Logins != "" && !slices.ContainsFunc(states, func(s devices.State) bool { return s.Cgroup == pol.Logins.Logins }) {
		states = append(states, devices.State{Cgroup: pol.Logins.Logins, Guard: devices.Guard{Closed: isolation.AllGPUs(&hw.Host)}.Canonical()})
	}
	return states
}

// filterNow makes a step that opens anew from what is observed when its turn comes.
func (pol *Policy) filterNow(ctx context.Context, s step.Step) (step.Step, bool, error) {
	var planned isolation.GuardArgs
	if err := json.Unmarshal(s.Args, &planned); err != nil {
		return s, false, fmt.Errorf("cannot read the step: %w", err)
	}
	if planned.Guard == nil {
		return s, true, nil
	}
	states, _, err := pol.DesiredFilters(pol.State.Desired(), pol.Observer.Observe(ctx), nil, pol.Table.Live())
	if err != nil {
		return s, false, err
	}
	i := slices.IndexFunc(states, func(g devices.State) bool { return g.Cgroup == planned.Cgroup })
	if i < 0 {
		return s, false, nil
	}
	planned.Guard = &states[i].Guard
	s.Args = step.Must(planned)
	return s, true, nil
}

// SyncLoginFilters makes the guards fit the leases now: one more, or one less. Whoever is told that he has a GPU can open it.
func (pol *Policy) SyncLoginFilters(more *lease.Lease, less string) error {
	want, node := pol.State.Desired(), pol.Observer.Last()
	if !want.Enforcing() || !want.Guarding() || !pol.Logins.Supported || driverUnavailable(node) {
		return nil
	}
	writes, err := pol.Logins.Replace(func() ([]devices.State, error) {
		leases := slices.DeleteFunc(pol.Table.Live(), func(l lease.Lease) bool { return l.ID == less || more != nil && l.ID == more.ID })
		if more != nil {
			leases = append(leases, *more)
		}
		states, _, err := pol.DesiredFilters(want, node, nil, leases)
		return slices.DeleteFunc(states, func(s devices.State) bool { return !pol.Logins.Exists(s.Cgroup) }), err
	})
	pol.Counters.GuardWrites.Add(uint64(writes))
	return err
}
